#!/bin/sh
exec {{ python }} -IS {{ script }} "$@"
