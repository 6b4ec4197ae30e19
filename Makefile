# Everything runs in .venv, which is made when it is missing or older than its definition.

PYTHON ?= python3
MODEL ?= base
PRECISION ?= int8
HOST ?= 127.0.0.1
PORT ?= 8000
METRICS_PORT ?=
SPEECH ?= ../shared/speech
BACKEND ?= tensorrt
TARGET ?= native
GPU ?= t4
SETTINGS ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
NONE_SELECTED := 5
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help serve test lint format accuracy bench soak fairness simulation precision engines floors lock clean

help: ## Show this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

serve: $(VENV)/.serve ## Serve on http://127.0.0.1:8000 (MODEL=tiny.en PORT=9000 METRICS_PORT=9090 SETTINGS="threads=2")
	$(BIN)/python -m serve_app --host $(HOST) --port $(PORT) $(addprefix --metrics-port ,$(METRICS_PORT)) \
		model=$(MODEL) precision=$(PRECISION) $(SETTINGS)

test: $(VENV)/.test ## Run the whole test suite (ARGS="-k name")
	$(BIN)/pytest -m "not e2e" --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS) || test $$? -eq $(NONE_SELECTED)
	$(BIN)/pytest -m e2e $(ARGS) || test $$? -eq $(NONE_SELECTED)

lint: $(VENV)/.lint ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.lint ## Rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

accuracy: $(VENV)/.bench ## Word and character error rates beside faster-whisper (SPEECH=folder with manifest.jsonl)
	$(BIN)/python -m benchmarks.accuracy --speech $(SPEECH) $(ARGS)

bench: $(VENV)/.bench ## The service under load, its engine and other systems, with plots (MODEL=base ARGS="--quick")
	$(BIN)/python -m benchmarks.bench --model $(MODEL) precision=$(PRECISION) $(SETTINGS) --speech $(SPEECH) $(ARGS)

soak: MODEL = tiny.en
soak: $(VENV)/.bench ## Thousands of requests in a row: memory, failures, texts (ARGS="--disconnect 0.1")
	$(BIN)/python -m benchmarks.soak --model $(MODEL) precision=$(PRECISION) $(SETTINGS) --speech $(SPEECH) $(ARGS)

fairness: $(VENV)/.bench ## What short utterances wait beside long recordings (ARGS="--share 0.8")
	$(BIN)/python -m benchmarks.fairness --model $(MODEL) precision=$(PRECISION) $(SETTINGS) --speech $(SPEECH) $(ARGS)

simulation: $(VENV)/.serve ## What the budgets of a batch do on a GPU, by a model of its times (ARGS="--rate 60 --model small")
	$(BIN)/python -m benchmarks.simulation $(ARGS)

precision: $(VENV)/.bench ## Time, size and errors of every precision, with plots (MODEL=tiny.en SPEECH=folder)
	$(BIN)/python -m benchmarks.precision --model $(MODEL) --speech $(SPEECH) $(ARGS)

engines: $(VENV)/.precision ## Build what a GPU runs (MODEL=base PRECISION=int8 TARGET=sm75 SPEECH=folder to calibrate with)
	$(BIN)/python -m asr.build --model $(MODEL) --backend $(BACKEND) --precision $(PRECISION) --target $(TARGET) \
		--calibration $(SPEECH) $(ARGS)

floors: $(VENV)/.serve ## The least time that a GPU, or cpu, can take (GPU=l4 MODEL=small ARGS="--seconds 8")
	$(BIN)/python -m asr.floors --gpu $(GPU) --model $(MODEL) $(ARGS)

lock: $(VENV)/.lint ## Resolve the dependencies anew into constraints.txt
	$(INSTALL) uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --all-extras --no-header --no-annotate \
		--output-file constraints.txt pyproject.toml

clean: ## Remove the environment and what tools leave behind; built models stay in the cache
	rm -rf $(VENV) build reports *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -exec rm -rf {} +

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: $(VENV)/bin/pip pyproject.toml constraints.txt
	$(INSTALL) --editable .[weights,openvino]
	@touch $@

$(VENV)/.precision: $(VENV)/.serve
	$(INSTALL) --editable .[weights,openvino,precision]
	@touch $@

$(VENV)/.test: $(VENV)/.precision
	$(INSTALL) --editable .[test]
	@touch $@

$(VENV)/.lint: $(VENV)/.test
	$(INSTALL) --editable .[test,lint]
	@touch $@

$(VENV)/.bench: $(VENV)/.precision
	$(INSTALL) --editable .[weights,openvino,precision,bench]
	@touch $@
