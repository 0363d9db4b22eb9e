"""An ONNX graph that takes raw rows or decoded images: the preprocessing goes before the model.

A numeric column is an input of float64 [N, 1], NaN where missing; a categorical column or a flag
is one of strings [N, 1]; a column of text its hashed words, float32 [N, features]; an image is
uint8 [N, size, size, channels]. A category that no training site had sets the output
`unseen_category`, where `unseen predict` refuses the row.
"""

import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import torch

from unseen.datasets.tables.encoding import FLAG, indicators
from unseen.datasets.tables.sheet import flag_words
from unseen.errors import UnseenError, optional
from unseen.serving.directory import Trained
from unseen.serving.reading.inputs import ImageInputs, TableInputs
from unseen.serving.reading.new_rows import Item

#: What the file next to `model.onnx` is called, and the plain description of its inputs.
FILE, DESCRIPTION = "model.raw.onnx", "preprocessing.json"
#: The name of the axis of rows in both files.
AXIS = "N"
IMAGE, UNSEEN = "image", "unseen_category"
#: Names of outputs, which no column may have: its input is then called COLUMN_input.
OUTPUTS = ("outputs", "probabilities", "label", UNSEEN)
#: What the names of the model's own nodes begin with, and those of the preprocessing.
MODEL, BEFORE = "model/", "preprocessing/"


class Graph:
    """Collects the nodes of the preprocessing."""

    def __init__(self) -> None:
        self.helper = optional("onnx.helper", "--format onnx needs", "onnx", "take torch-export")
        self.numpy = optional(
            "onnx.numpy_helper", "--format onnx needs", "onnx", "take torch-export"
        )
        self.kinds = optional(
            "onnx", "--format onnx needs", "onnx", "take torch-export"
        ).TensorProto
        self.nodes: list[Any] = []
        self.last: list[Any] = []  # behind the model
        self.constants: list[Any] = []
        self.inputs: list[Any] = []

    def input(self, name: str, kind: int, shape: Sequence[int]) -> str:
        """Declare an input [N, *shape] and return its name."""
        self.inputs.append(self.helper.make_tensor_value_info(name, kind, [AXIS, *shape]))
        return name

    def constant(self, array: np.ndarray) -> str:
        """Return the name of a constant."""
        name = f"{BEFORE}constant{len(self.constants)}"
        self.constants.append(self.numpy.from_array(array, name))
        return name

    def node(
        self, kind: str, *inputs: str, output: str = "", domain: str = "", **options: Any
    ) -> str:
        """Add a node and return the name of its output."""
        output = output or f"{BEFORE}{kind}{len(self.nodes)}"
        self.nodes.append(
            self.helper.make_node(kind, list(inputs), [output], domain=domain, **options)
        )
        return output

    def as_float(self, name: str) -> str:
        return self.node("Cast", name, to=self.kinds.FLOAT)


def with_preprocessing(trained: Trained, content: bytes) -> bytes | None:
    """Return the graph of an export with its preprocessing; None for arrays, which have none.

    Args:
        trained: The model.
        content: The content of its `model.onnx`.
    """
    import onnx
    from onnx.compose import add_prefix

    proto = add_prefix(onnx.load_from_string(content), MODEL, rename_outputs=False)
    graph, inputs = Graph(), trained.inputs
    extra: list[Any] = []
    if isinstance(inputs, TableInputs):
        unseen = _table(graph, inputs)
        if unseen:
            shape = [AXIS, 1]
            extra.append(graph.helper.make_tensor_value_info(unseen, graph.kinds.BOOL, shape))
    elif isinstance(inputs, ImageInputs):
        channels, size, _ = inputs.shape
        name = graph.input(IMAGE, graph.kinds.UINT8, [size, size, channels])
        turned = graph.node("Transpose", name, perm=[0, 3, 1, 2])
        bytes_of = graph.constant(np.array(255.0, dtype=np.float32))
        graph.node("Div", graph.as_float(turned), bytes_of, output=f"{MODEL}x")
    else:
        return None
    if trained.classes is not None:
        extra.append(_label(graph, trained))
    nodes = [*graph.nodes, *proto.graph.node, *graph.last]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    del proto.graph.input[:]
    proto.graph.input.extend(graph.inputs)
    proto.graph.initializer.extend(graph.constants)
    proto.graph.output.extend(extra)
    if not any(entry.domain == "ai.onnx.ml" for entry in proto.opset_import):
        proto.opset_import.append(graph.helper.make_opsetid("ai.onnx.ml", 3))
    onnx.checker.check_model(proto)
    result: bytes = proto.SerializeToString()
    return result


def input_name(column: str) -> str:
    """Return the name of a column's input."""
    return f"{column}_input" if column in OUTPUTS else column


def _label(graph: Graph, trained: Trained) -> Any:
    """Add the likeliest class, by its name or of each pixel; return the output's description."""
    if trained.masks:
        likeliest = {"axis": 1, "keepdims": 0}
        graph.last = [graph.helper.make_node("ArgMax", ["probabilities"], ["mask"], **likeliest)]
        sides = trained.inputs.shape[1:]
        return graph.helper.make_tensor_value_info("mask", graph.kinds.INT64, [AXIS, *sides])
    names = graph.constant(np.array(trained.classes, dtype=object))
    place = f"{BEFORE}place"
    options = {"axis": 1, "keepdims": 0}
    graph.last = [
        graph.helper.make_node("ArgMax", ["probabilities"], [place], **options),
        graph.helper.make_node("Gather", [names, place], ["label"], axis=0),
    ]
    return graph.helper.make_tensor_value_info("label", graph.kinds.STRING, [AXIS])


def _table(graph: Graph, inputs: TableInputs) -> str:
    """Add what makes `x` of a table's columns; return the output that flags unseen categories."""
    schema, (gaps, codes_of) = inputs.schema, indicators(inputs.schema, inputs.statistics)
    parts: list[str] = []
    if inputs.numeric:
        parts += _numbers(graph, inputs, gaps)
    unseen: list[str] = []
    for (j, names), places in zip(schema.categorical, codes_of, strict=True):
        column = schema.columns[j]
        cell = graph.input(input_name(column), graph.kinds.STRING, [1])
        code = _codes(graph, inputs, column, names, cell)
        if places:
            codes = graph.constant(np.array([places], dtype=np.int64))
            parts.append(graph.as_float(graph.node("Equal", code, codes)))
        nowhere = graph.constant(np.array([[-1]], dtype=np.int64))
        unseen.append(graph.node("Equal", code, nowhere))
    for text, hashed in schema.texts.items():
        parts.append(graph.input(input_name(text), graph.kinds.FLOAT, [hashed.features]))
    graph.node("Concat", *parts, output=f"{MODEL}x", axis=1)
    if not unseen:
        return ""
    flags = [graph.node("Cast", name, to=graph.kinds.INT32) for name in unseen]
    total = graph.node("Sum", *map(graph.as_float, flags))
    zero = graph.constant(np.array(0.0, dtype=np.float32))
    return graph.node("Greater", total, zero, output=UNSEEN)


def _numbers(graph: Graph, inputs: TableInputs, gaps: list[int]) -> list[str]:
    """Add the standardised numeric columns, and indicators of a gap in those at some places."""
    names = inputs.numeric
    columns = [graph.input(input_name(name), graph.kinds.DOUBLE, [1]) for name in names]
    numbers = graph.node("Concat", *columns, axis=1)
    if inputs.blank:
        blank = graph.constant(np.array([[name in inputs.blank for name in names]]))
        zero = graph.constant(np.zeros((1, 1)))
        empty = graph.node("And", graph.node("Equal", numbers, zero), blank)
        numbers = graph.node("Where", empty, graph.constant(np.full((1, 1), math.nan)), numbers)
    missing = graph.node("IsNaN", numbers)
    scaling = [inputs.scaling[name] for name in names]
    mean = graph.constant(np.array([[m or 0.0 for m, _ in scaling]]))
    deviation = graph.constant(np.array([[d for _, d in scaling]]))
    z = graph.node("Div", graph.node("Sub", numbers, mean), deviation)
    unknown = graph.constant(np.array([[m is None for m, _ in scaling]]))
    no_value = graph.node("Or", missing, unknown)
    z = graph.node("Where", no_value, graph.constant(np.zeros((1, 1))), z)
    parts = [graph.as_float(z)]
    if gaps:
        places = graph.constant(np.array(gaps, dtype=np.int64))
        parts.append(graph.as_float(graph.node("Gather", missing, places, axis=1)))
    return parts


def _codes(graph: Graph, inputs: TableInputs, column: str, names: Sequence[str], cell: str) -> str:
    """Add the codes of a column's cells: −1 for a category that no training site had."""
    flag = column in inputs.schema.flags
    table = dict.fromkeys((s for token in inputs.missing for s in _spellings(token)), len(names))
    levels = () if flag else inputs.levels[column]
    table |= {word: k for word, k in flag_words(names).items() if names[k] in levels}
    for k, name in enumerate(names):
        if flag or name in levels:
            spellings = (f"{k}", FLAG[k]) if flag else (name,)
            table |= dict.fromkeys((s for text in spellings for s in _spellings(text)), k)
    return graph.node(
        "LabelEncoder", cell, domain="ai.onnx.ml", keys_strings=list(table),
        values_int64s=list(table.values()), default_int64=-1,
    )  # fmt: skip


def _spellings(name: str) -> set[str]:
    """Return what a csv file or a data frame may write for a category.

    Example:
        >>> sorted(_spellings("3")), sorted(_spellings("yes"))
        (['3', '3.0'], ['YES', 'Yes', 'yes'])
    """
    try:
        value = Decimal(name)
    except ArithmeticError:
        return {name, name.lower(), name.upper(), name.capitalize()} if name in FLAG else {name}
    if not value.is_finite() or value != value.to_integral_value():
        return {name}
    return {name, str(int(value)), f"{int(value)}.0"}


def rows_of(inputs: TableInputs, items: Sequence[Item]) -> dict[str, np.ndarray]:
    """Return the raw rows of items with their cells, as the graph takes them."""
    schema, N = inputs.schema, len(items)
    values = np.array([item.numbers for item in items], dtype=np.float64).reshape(N, -1)
    coded = {*schema.categories, *schema.flags}
    feed: dict[str, np.ndarray] = {}
    for j, column in enumerate(schema.columns):
        if column in coded:
            cells = [[inputs.dialect.plain(item.cells[column].strip())] for item in items]
            feed[input_name(column)] = np.array(cells, dtype=object)
        else:
            feed[input_name(column)] = values[:, j : j + 1]
    start = len(schema.columns)
    for text, hashed in schema.texts.items():
        feed[input_name(text)] = values[:, start : start + hashed.features].astype(np.float32)
        start += hashed.features
    return feed


def description(trained: Trained) -> bytes:
    """Return `preprocessing.json`: every input with its type, and all that is done to it."""
    inputs = trained.inputs
    content: dict[str, Any] = {
        "model": trained.spec["name"],
        "steps": trained.spec["input"]["steps"],
    }
    if isinstance(inputs, TableInputs):
        columns = []
        for column in trained.spec["input"]["columns"]:
            kind = column["kind"]
            onnx = "float64 [N, 1]" if kind == "number" else "string [N, 1]"
            if kind == "text":
                onnx = f"float32 [N, {column['features']}], hashed"
            about = {"input": input_name(column["name"]), "onnx": onnx}
            columns.append({**column, **about, "zero is missing": column["name"] in inputs.blank})
        content |= {
            "columns": columns, "missing cells": list(inputs.missing),
            "features": list(inputs.features), "unseen category": "no feature of its column is set",
        }  # fmt: skip
    elif isinstance(inputs, ImageInputs):
        channels, size, _ = inputs.shape
        content["image"] = {"onnx": f"uint8 [N, {size}, {size}, {channels}]", "divided by": 255}
    content["outputs"] = {
        "classes": list(trained.classes) if trained.classes is not None else None,
        "label": trained.spec.get("label"),
        **({"times": trained.spec["times"]} if "times" in trained.spec else {}),
        "calibration": trained.spec.get("decisions", {}).get("calibration"),
    }
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def session_of(content: bytes) -> Any:
    """Return onnxruntime's session of a graph."""
    runtime = optional("onnxruntime", "--format onnx needs", "onnx", "take torch-export")
    try:
        return runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own kinds share no base
        raise UnseenError(f"the graph with preprocessing cannot be run: {error}") from None


def run(session: Any, feed: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return a session's outputs by name; numbers as tensors."""
    inputs = {entry.name for entry in session.get_inputs()}
    arrays = session.run(None, {name: array for name, array in feed.items() if name in inputs})
    names = [entry.name for entry in session.get_outputs()]
    return {
        name: torch.from_numpy(array) if array.dtype != object else array
        for name, array in zip(names, arrays, strict=True)
    }
