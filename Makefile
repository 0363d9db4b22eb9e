# make demo: a first table. make test: lint, types and tests. Both make .venv if it is missing.
PYTHON ?= python3
BIN := .venv/bin
# One thread per process: training gives the same bits everywhere, and two tests can share two cores.
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
# What other kernels could break. Not the laws of methods: they compare a run's bits with its own.
MATHEMATICS := tests/laws/test_rules.py tests/oracles tests/privacy

.PHONY: demo test quick test-all portable lint install docs site bench bench-quick clean
demo: .venv/bin/unseen
	$(BIN)/unseen study digits stacked=300 --out results/demo --jobs 2

test: lint
	$(BIN)/pytest -n 2 -m "not slow"

test-all: lint
	$(BIN)/pytest -n 2

# The laws of every method on one net, and the oracles.
quick: install
	UNSEEN_QUICK=1 $(BIN)/pytest -n 2 -m "not slow" tests/laws tests/oracles

# The mathematics once more with the kernels that torch and oneDNN would pick on older processors:
# without vector instructions, and with AVX2.
portable: install
	ATEN_CPU_CAPABILITY=default $(BIN)/pytest -n 2 -m "not slow" $(MATHEMATICS)
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(BIN)/pytest -n 2 -m "not slow" $(MATHEMATICS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The package alone, for a first look; what tests and optional parts need comes with `install`.
.venv/bin/unseen:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .

install: .venv/installed
.venv/installed: pyproject.toml papers/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]" \
		-e ./papers
	touch $@

docs: install
	$(BIN)/python tools/method_pages.py

# The pages of docs as a site, in build/site. The variable silences advice on MkDocs 2.
site: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir build/site

# On a quiet machine; about twenty minutes. BENCH="rules memory" measures these alone.
bench: install
	env -u OMP_NUM_THREADS -u MKL_NUM_THREADS $(BIN)/python benchmarks $(BENCH) \
		--out docs/benchmarks.json --page docs/benchmarks.md

# Every section on less work: does it run at all?
bench-quick: install
	env -u OMP_NUM_THREADS -u MKL_NUM_THREADS UNSEEN_BENCH_DEVICE=cpu OMP_WAIT_POLICY=passive \
		$(BIN)/python benchmarks --quick

clean:
	rm -rf .venv build results .pytest_cache .mypy_cache .ruff_cache .hypothesis
