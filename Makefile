# The commands of README. Each sets up what it needs (tools/setup.sh).
.PHONY: build demo check test test-full clean

# One compiler cache for all of them, outside the clone.
PROTRAIN_FILES := $(or $(PROTRAIN_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/protrain)
export CCACHE_DIR ?= $(PROTRAIN_FILES)/ccache
export CCACHE_MAXSIZE ?= 5G

build:
	@tools/setup.sh > /dev/null && tools/configure.sh release && ninja -C build/release protrain

demo: build
	@examples/demo/run.sh

check:
	@tools/test.sh check

test:
	@tools/test.sh test

test-full:
	@tools/test.sh full

clean:
	rm -rf build
