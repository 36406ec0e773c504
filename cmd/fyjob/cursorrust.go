package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint/cursor"
)

// rustTests lists the tests of a Rust workspace: by cargo alone, or as nextest would run them, with
// its filters. Both build what they list.
func rustTests(format string, command []string) ([]cursor.RustTest, error) {
	if format == "nextest" {
		args, err := cargoArgs(command, "nextest", "list")
		if err != nil {
			return nil, err
		}
		out, err := output(command[0], append([]string{"nextest", "list", "--message-format=json"}, args...))
		if err != nil {
			return nil, err
		}
		return cursor.ParseNextest(out)
	}
	args, err := cargoArgs(command, "test")
	if err != nil {
		return nil, err
	}
	out, err := output(command[0], append([]string{"test", "--no-run", "--message-format=json"}, args...))
	if err != nil {
		return nil, err
	}
	binaries, err := cursor.ParseCargo(out)
	if err != nil {
		return nil, err
	}
	var all []cursor.RustTest
	for _, b := range binaries {
		list, err := output(b.Path, []string{"--list", "--format", "terse"})
		if err != nil {
			return nil, err
		}
		ignored, err := output(b.Path, []string{"--list", "--format", "terse", "--ignored"})
		if err != nil {
			return nil, err
		}
		all = append(all, b.Tests(list, ignored)...)
	}
	return all, nil
}

// cargoArgs is what stands behind `cargo test` or `cargo nextest list`. Arguments of the test
// programs are this wrapper's own.
func cargoArgs(command []string, words ...string) ([]string, error) {
	n := 1 + len(words)
	if len(command) < n || filepath.Base(command[0]) != "cargo" || !slices.Equal(command[1:n], words) {
		return nil, exitf(exitUsage, "%q is not `cargo %s …`", command, strings.Join(words, " "))
	}
	for _, a := range command[n:] {
		if a == "--" || a == "--no-run" || a == "--doc" || a == "--message-format" {
			return nil, exitf(exitUsage, "%s is the wrapper's own, or runs no tests", a)
		}
	}
	return command[n:], nil
}

// rustPlan makes the list of tests, and names their programs together.
func rustPlan(tests []cursor.RustTest) (cursor.Plan, forgeyard.Digest, error) {
	var p cursor.Plan
	var all bytes.Buffer
	last := ""
	for _, t := range tests {
		p = append(p, t.ID)
		if t.Path == last {
			continue
		}
		last = t.Path
		d, err := digestOf([]string{t.Path})
		if err != nil {
			return nil, d, err
		}
		fmt.Fprintln(&all, t.RustBinary.ID, d)
	}
	return p, cas.Sum(all.Bytes()), nil
}

// rustRun runs each test that remains in a process of its own, where cargo would run it.
func (h *helper) rustRun(tests []cursor.RustTest) func(suite, []string) error {
	by := map[string]cursor.RustTest{}
	for _, t := range tests {
		by[t.ID] = t
	}
	return func(s suite, _ []string) error {
		return h.eachTest(s, func(id string) *exec.Cmd {
			t := by[id]
			cmd := exec.Command(t.Path, t.Args()...)
			cmd.Dir, cmd.Env = t.Dir, append(os.Environ(), "CARGO_MANIFEST_DIR="+t.Dir)
			return cmd
		})
	}
}
