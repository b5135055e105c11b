# `make` alone lists what there is. Only python3 (3.10 or newer) is needed; the rest goes into .venv here.
# Variables, all with a default: PYTHON, PIP_FLAGS, JOBS, SEED, FOR, RUNS, REWRITE, STORE, ARGS.

PYTHON    ?= python3
VENV      ?= .venv
# Further arguments of pip, such as an index of smaller, CPU-only builds of torch.
PIP_FLAGS ?=
# Test processes at a time. A whole file goes to one of them, so that the tests of a file never meet each other.
JOBS      ?= 3
ARGS      ?=
# The real job of `make quick`.
QUICK_JOB := tests/integration/test_digits.py::test_two_workers_learn_to_read_digits

PY      := $(VENV)/bin/python
READY   := $(VENV)/.ready
LINK    := .typing/elastic_agent
PYTEST  := $(PY) -m pytest
CORE    := agent control launcher proto rendezvous trainer worker
BESIDE  := tests examples benchmarks

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run demo trainer-demo trainer trainer-rivals guard-demo test quick check format stories sim sim-long mutants chaos partitions many-nodes causes guards guard-cost control-cost fuzz-control goodput slurm-chain preloads survivors host-kills host-losses storms resume sweeps bench rendezvous-scale proto clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) $(LINK) ## make .venv with all that the targets below need; quick when it is there

$(READY): setup.cfg setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$$($(PYTHON) --version 2>&1) is too old: Python 3.10 or newer is needed; say make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "no virtual environments here: on Debian and Ubuntu, apt-get install python3-venv" >&2; exit 1; }
	@echo "installing into $(VENV); the first time takes minutes, torch is large"
	@$(PY) -m pip install --quiet --disable-pip-version-check --use-pep517 $(PIP_FLAGS) --editable '.[dev]'
	@$(PY) -c "$$POINT_AT_LINK"
	@touch $@

# An editable install puts a finder of its own into .venv, which costs 11 ms at every start of this Python, the workers'
# included. The link does the same for nothing.
define POINT_AT_LINK
import glob, os, sysconfig
for path in glob.glob(sysconfig.get_path("purelib") + "/__editable__.elastic_agent-*.pth"):
    with open(path, "w") as file:
        file.write(os.path.abspath(".typing") + "\n")
endef
export POINT_AT_LINK

# The repository root is the package: through this link it has the right name, whatever the checkout is called.
$(LINK):
	@mkdir -p .typing && ln -sfn .. $@

run: setup ## the main job: two workers learn to read digits, to the end
	rm -rf digits-checkpoints
	$(VENV)/bin/elastic-agent --standalone --nproc-per-node 2 examples/digits/train.py $(ARGS)

demo: setup ## a show: nodes join, fail and leave, and the job goes on
	$(PY) examples/demo.py $(ARGS)

trainer-demo: setup ## a show: three nodes train with a TorchTrainer, and the first is killed
	$(PY) examples/trainer/demo.py $(ARGS)

guard-demo: setup ## a show: save and kill switch, preemption, a leak and a full disc on the digits job
	$(PY) examples/guard_demo.py $(ARGS)

# Once, for all processes that tests start: they write no compiled modules where PYTHONDONTWRITEBYTECODE is set, and
# compiling an agent's takes half of its start.
.PHONY: compiled
compiled: setup
	@$(PY) -m compileall -q -j 0 $(CORE) tests/support

test: setup check compiled .protoc/.ready .foreign/.ready .frameworks/.ready .transformers4/.ready .deepspeed/.ready ## all checks and all tests
	$(PYTEST) -n $(JOBS) --dist loadfile --durations 40 --durations-min 5 $(ARGS)

quick: setup check compiled ## under a minute: checks, both machines, unit tests, stories, one real job
	$(PYTEST) -n $(JOBS) --dist loadfile -m "not campaign and not slow or quick" tests/unit tests/stories \
	  tests/project/test_tidy.py $(QUICK_JOB) $(ARGS)

check: setup ## lint, format and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	MYPYPATH=.typing $(PY) -m mypy -m elastic_agent -m elastic_agent.__main__ -m elastic_agent.torchrun $(CORE:%=-p elastic_agent.%)
	MYPYPATH=.typing:tests $(PY) -m mypy --explicit-package-bases $(BESIDE)

format: setup ## put the sources in the house format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

stories: setup ## play the stories; REWRITE=1 records what happens now as what should
	REWRITE=$(REWRITE) $(PYTEST) tests/stories/test_stories.py $(ARGS)

sim: setup ## simulated jobs with faults; SEED=n replays one with its trace
	$(PY) -m tests.simulation $(if $(SEED),--seed $(SEED)) $(ARGS)

sim-long: setup ## simulated jobs on all cores for FOR=600 seconds, new ones every time
	$(PY) -m tests.simulation --for $(or $(FOR),600) --jobs 0 $(ARGS)

mutants: setup ## plant a hundred bugs in the protocol and see the simulator catch each
	$(PY) -m tests.simulation --mutants $(ARGS)

chaos: setup ## real jobs with real faults: RUNS=200; SEED=n repeats one; STORE=etcd: three etcd servers, which fail too
	$(PY) -m tests.campaigns.chaos $(if $(STORE),--store $(STORE)) $(if $(SEED),--seed $(SEED),$(if $(RUNS),--runs $(RUNS))) $(ARGS)

partitions: setup ## real nodes cut from each other and from etcd: RUNS=300; SEED=n repeats one job; needs root
	$(PY) -m tests.campaigns.partitions $(if $(SEED),--seed $(SEED),$(if $(RUNS),--runs $(RUNS))) $(ARGS)

survivors: setup ## kill agent, nursery, guardian in every order, 500 times and more, and count survivors; ARGS
	PYTHONPATH=.typing:tests $(PY) -m campaigns.kills.survivors $(ARGS)

host-kills: setup ## SIGKILL or SIGTERM of the agent that hosts a c10d store, in every phase, 50 jobs of 3 and of 5 nodes each; ARGS="--jobs 5 --nodes 3"
	PYTHONPATH=.typing:tests $(PY) -m campaigns.kills.killed_hosts $(ARGS)

host-losses: setup ## cut off or freeze the node that hosts a c10d store, 10 jobs of 3 and of 5 nodes each; needs root; ARGS="--jobs 3"
	PYTHONPATH=.typing:tests $(PY) -m campaigns.kills.lost_hosts $(ARGS)

storms: setup ## ten signals at random times to an agent in any phase, 200 times; ARGS
	PYTHONPATH=.typing:tests $(PY) tests/campaigns/storms.py $(ARGS)

many-nodes: setup ## a thousand nodes on one c10d store, 1,024 descriptors for each; ARGS="--nodes 200"
	PYTHONPATH=.typing:tests $(PY) -m tests.campaigns.many_nodes $(ARGS)

causes: setup ## which cause is named when jobs fail in known ways, beside torchrun; ARGS="--seeds 20 --torchrun 3"
	$(PY) -m tests.campaigns.causes $(ARGS)

guards: setup .frameworks/.ready ## the long tests of guards: real SLURM, the demo, slow ranks, busy hosts
	$(PYTEST) -m campaign tests/integration $(ARGS)

guard-cost: setup ## what all guards on at once cost the digits job, beside the same job without, in 10 minutes; ARGS="--pairs 8 --rest 0"
	PYTHONPATH=.typing:tests $(PY) -m campaigns.guards.guard_cost $(ARGS)

control-cost: setup ## what asking an agent costs: unasked, a call, 100 followers, elasticctl; ARGS="--pairs 20"
	PYTHONPATH=.typing:tests $(PY) tests/campaigns/control/control_cost.py $(ARGS)

fuzz-control: setup ## a million mutated requests to an agent's control socket; ARGS=--page: to its page, ARGS=--tcp: to its gRPC port
	PYTHONPATH=.typing:tests $(PY) tests/campaigns/control/control_fuzz.py $(ARGS)

slurm-chain: setup ## signal, save, 75, requeue, resume under a real SLURM: RUNS=20; ARGS
	PYTHONPATH=.typing:tests $(PY) tests/campaigns/slurm_chain.py $(if $(RUNS),--runs $(RUNS)) $(ARGS)

preloads: setup .frameworks/.ready .deepspeed/.ready ## restart real training scripts with --preload auto, by hand and without; ARGS="--only FSDP2"
	PYTHONPATH=.typing:tests .frameworks/bin/python tests/campaigns/preloads.py $(ARGS)

resume: setup .frameworks/.ready ## kill and resize training scripts, fail disks, compare bits and other tools; ARGS="--real 50 --seed 7" for a part, ARGS=--figures for what it costs
	$(PY) -m tests.campaigns.resume $(ARGS)
	PYTHONPATH=.typing:tests $(PY) tests/campaigns/resume/rivals.py

trainer: setup ## TorchTrainer: passes and starts beside plain DDP, kills of workers, schedules of nodes; ARGS="--pairs 100 --calls 300 --starts 5 --kills 50 --schedules 50"
	PYTHONPATH=.typing:tests $(PY) -m campaigns.trainer $(ARGS)

goodput: setup ## real jobs with SIGKILLs: where their seconds went, against the campaign's clock; ARGS="--runs 50"
	PYTHONPATH=.typing:tests $(PY) -m campaigns.goodput $(ARGS)

bench: setup ## beside torchrun, in one run; ARGS=--quick for a short one
	$(PY) -m benchmarks $(ARGS)

rendezvous-scale: setup ## agreement of 8 to 1,000 nodes on real sockets, beside torch's rendezvous; ARGS="--c10d 10000 --torch ''"
	$(PY) -m benchmarks.rendezvous_scale $(ARGS)

# grpcio-tools 1.62 writes code that every protobuf since 3.20 loads; newer ones do not. It has no wheel for Python 3.13.
.protoc/.ready: Makefile
	$(PYTHON) -m venv .protoc
	.protoc/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) grpcio-tools==1.62.3
	@touch $@

# Through the link, so that protobuf's registry, one for each process, knows the files by names that are surely ours.
# PROTO_TO is where the code goes, seen as the directory that holds the package.
PROTO_TO ?= .typing
proto: .protoc/.ready $(LINK) ## write the Python code of proto/*.proto anew
	.protoc/bin/python -m grpc_tools.protoc -I.typing --python_out=$(PROTO_TO) --pyi_out=$(PROTO_TO) \
	  .typing/elastic_agent/proto/*.proto
	@sed -i 's/, _Mapping\]/, _Mapping[str, object]]/g' $(PROTO_TO)/elastic_agent/proto/*_pb2.pyi  # as mypy --strict asks
	@sed -n "s/^DESCRIPTOR = .*AddSerializedFile(\(b'.*'\))$$/# Made from elastic_pb2.py by \`make proto\`: the same bytes.\nSERIALIZED = \1/p" \
	  $(PROTO_TO)/elastic_agent/proto/elastic_pb2.py > $(PROTO_TO)/elastic_agent/proto/elastic_bytes_pb2.py

# For tests: another's etcd client, and the oldest protobuf and grpcio that we promise to live with.
.foreign/.ready: Makefile
	$(PYTHON) -m venv .foreign
	.foreign/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) etcd3==0.12.0 \
	  protobuf==3.20.2 grpcio==1.62.3
	@touch $@

# Launchers of others, which launch through torch; torch itself is that of .venv.
.frameworks/.ready: Makefile $(READY)
	$(PYTHON) -m venv .frameworks
	@$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$(.frameworks/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/lent.pth"
	@.frameworks/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) torch==2.13.0 \
	  accelerate==1.15.0 lightning==2.6.6 transformers==5.23.0 torchdata==0.11.0 datasets==5.2.0 torchx==0.7.0
	@touch $@

# The Trainer that most scripts were written for; all else is that of .frameworks.
.transformers4/.ready: Makefile .frameworks/.ready
	$(PYTHON) -m venv .transformers4
	@for each in .frameworks/bin/python $(PY); do $$each -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; done \
	  > "$$(.transformers4/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/lent.pth"
	@.transformers4/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(PIP_FLAGS) \
	  transformers==4.57.1 tokenizers==0.22.2 huggingface-hub==0.36.2 datasets==4.0.0
	@touch $@

# Beside the other frameworks it would change what they do: accelerate uses it where it is, and it writes to stdout.
.deepspeed/.ready: Makefile $(READY)
	$(PYTHON) -m venv .deepspeed
	@$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$(.deepspeed/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/lent.pth"
	@.deepspeed/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) setuptools wheel
	@DS_BUILD_OPS=0 .deepspeed/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) \
	  --no-build-isolation torch==2.13.0 deepspeed==0.19.8  # its build imports torch
	@touch $@

sweeps: setup .sweeps/.ready ## the tests of TorchTrainer with Ray Tune's and Optuna's own packages, which it installs first (580 MB)
	$(PYTEST) -m campaign tests/integration/trainer/test_trainer_sweeps.py $(ARGS)

trainer-rivals: setup .sweeps/.ready ## TorchTrainer beside Ray Train v2 on this machine: start, pass, a killed worker, memory; ARGS="--rounds 3"
	PYTHONPATH=.typing:tests .sweeps/bin/python -m campaigns.trainer.rivals $(ARGS)

# For TorchTrainer in sweeps, and beside Ray Train; torch and cloudpickle are those of .venv.
.sweeps/.ready: Makefile $(READY)
	$(PYTHON) -m venv .sweeps
	@$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$(.sweeps/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/lent.pth"
	@.sweeps/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) torch==2.13.0 \
	  'ray[tune]==2.60.0' optuna
	@touch $@

# Its torchvision needs the CUDA build of torch: some gigabytes, so no other target asks for it.
streaming: setup ## the tests with MosaicML Streaming's own package, which it installs first (several GB)
	$(PYTHON) -m venv .streaming
	.streaming/bin/python -m pip install --quiet --disable-pip-version-check --use-pep517 $(PIP_FLAGS) --editable . \
	  mosaicml-streaming==0.13.0
	$(PYTEST) tests/integration/resume/test_streams_of_others.py $(ARGS)

clean: ## remove all that the targets above made
	rm -rf $(VENV) .protoc .foreign .frameworks .transformers4 .deepspeed .sweeps .streaming .etcd .prometheus .chromium .typing .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info digits-checkpoints
	find . -name __pycache__ -prune -exec rm -rf {} +
