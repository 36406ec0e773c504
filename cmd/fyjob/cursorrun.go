package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint/cursor"
)

// exitSkip is how a program says that its test was skipped, as Automake has it.
const exitSkip = 77

// errStop ends a run because the job is asked to end.
var errStop = errors.New("the job is asked to end")

const runUsage = "fyjob cursor run --format list|go|cargo|nextest [--report FILE] -- COMMAND..."

// cursorRun runs what remains of the list, and exits with 0 if every test of it ended well,
// in this epoch or an older one.
func (h *helper) cursorRun(args []string) error {
	own, command := split(args)
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	format, to := flags.String("format", "", ""), flags.String("report", "", "")
	if _, err := parse(flags, own, 0, runUsage); err != nil {
		return err
	}
	s, run, err := h.prepared(*format, command)
	if err != nil {
		return err
	}
	if err := run(s, command); err != nil {
		if errors.Is(err, errStop) {
			return exitf(h.exitCode, "%v", err)
		}
		return err
	}
	if *to == "" {
		return h.summary(s)
	}
	if _, err := h.report(s, *to); err != nil {
		return err
	}
	return h.summary(s)
}

// prepared makes the list of a format that has its own, or reads the one that is there, and says
// how it runs.
func (h *helper) prepared(format string, command []string) (s suite, run func(suite, []string) error, err error) {
	if len(command) == 0 {
		format = ""
	}
	switch format {
	case "list":
		s, err = h.loadSuite()
		return s, h.runEach, err
	case "go":
		p, binary, err := h.goPlan(command)
		if err != nil {
			return s, nil, err
		}
		s, err = h.setPlan(p, binary)
		return s, h.runGo, err
	case "cargo", "nextest":
		tests, err := rustTests(format, command)
		if err != nil {
			return s, nil, err
		}
		p, binary, err := rustPlan(tests)
		if err != nil {
			return s, nil, err
		}
		s, err = h.setPlan(p, binary)
		return s, h.rustRun(tests), err
	}
	return s, nil, exitf(exitUsage, "format %q with the command %q; usage: %s", format, command, runUsage)
}

// summary tells the end in one line.
func (h *helper) summary(s suite) error {
	st, err := h.state(s)
	if err != nil {
		return err
	}
	r := st.Report()
	if err := h.print(fmt.Sprintf("%d tests: %d passed, %d failed, %d skipped, %d errors, %d missing; %d carried over", r.Tests, r.Passed, r.Failed, r.Skipped, r.Errors, r.Missing, r.Carried)); err != nil {
		return err
	}
	if !r.OK() {
		return no()
	}
	return nil
}

// stopped reports whether the job is asked to end: then what fails may fail of that.
func (h *helper) stopped() (bool, error) {
	r, err := h.request()
	return r.WantExit, err
}

// end records an end, unless a stop may be what made it: such a test runs again.
func (h *helper) end(s suite, id string, o cursor.Outcome) error {
	if o.Bad() {
		if stop, err := h.stopped(); err != nil || stop {
			return errors.Join(err, errStop)
		}
	}
	return h.recordIn(s, id, cursor.End, o, "")
}

// runEach runs the command once for each test.
func (h *helper) runEach(s suite, command []string) error {
	return h.eachTest(s, func(id string) *exec.Cmd {
		return exec.Command(command[0], append(slices.Clone(command[1:]), id)...)
	})
}

// eachTest runs what remains, each test by a command of its own, and records each before and
// behind.
func (h *helper) eachTest(s suite, command func(id string) *exec.Cmd) error {
	st, err := h.state(s)
	if err != nil {
		return err
	}
	for _, id := range st.Remaining() {
		if stop, err := h.stopped(); err != nil || stop {
			return errors.Join(err, errStop)
		}
		if err := h.recordIn(s, id, cursor.Start, "", ""); err != nil {
			return err
		}
		cmd := command(id)
		cmd.Stdout, cmd.Stderr = h.out, os.Stderr
		outcome := cursor.Pass
		if err := cmd.Run(); err != nil {
			x := (*exec.ExitError)(nil)
			switch {
			case !errors.As(err, &x) || x.ExitCode() < 0:
				outcome = cursor.Error
			case x.ExitCode() == exitSkip:
				outcome = cursor.Skip
			default:
				outcome = cursor.Fail
			}
		}
		if err := h.end(s, id, outcome); err != nil {
			return err
		}
	}
	return nil
}

// goCommand takes `go test` apart. Flags with a value are written as one word.
func goCommand(command []string) (flags, packages []string, err error) {
	if len(command) < 2 || filepath.Base(command[0]) != "go" || command[1] != "test" {
		return nil, nil, exitf(exitUsage, "%q is not `go test …`", command)
	}
	for _, a := range command[2:] {
		if !strings.HasPrefix(a, "-") {
			packages = append(packages, a)
			continue
		}
		name, _, _ := strings.Cut(strings.TrimLeft(a, "-"), "=")
		switch name {
		case "run", "list", "json", "c", "o", "exec", "args", "bench", "fuzz", "v":
			return nil, nil, exitf(exitUsage, "%s is the wrapper's own flag, or runs no tests", a)
		}
		if len(packages) > 0 {
			return nil, nil, exitf(exitUsage, "flag %s after a package: write flags first, and their values as -flag=value", a)
		}
		flags = append(flags, a)
	}
	if packages == nil {
		packages = []string{"."}
	}
	return append([]string{"-trimpath"}, flags...), packages, nil
}

// goEvent is a line of `go test -json`.
type goEvent struct {
	Action, Package, Test, Output string
}

var testName = regexp.MustCompile(`^(Test|Example|Fuzz)\S*$`)

// goPlan lists the tests of some packages as PACKAGE::TEST, and names their binaries.
func (h *helper) goPlan(command []string) (cursor.Plan, forgeyard.Digest, error) {
	var none forgeyard.Digest
	flags, packages, err := goCommand(command)
	if err != nil {
		return nil, none, err
	}
	out, err := output(command[0], slices.Concat([]string{"test", "-json", "-list=."}, flags, packages))
	if err != nil {
		return nil, none, err
	}
	var p cursor.Plan
	var order []string
	for line := range bytes.Lines(out) {
		var e goEvent
		if json.Unmarshal(line, &e) != nil || e.Action != "output" || !testName.MatchString(strings.TrimSpace(e.Output)) {
			continue
		}
		p = append(p, e.Package+"::"+strings.TrimSpace(e.Output))
		if !slices.Contains(order, e.Package) {
			order = append(order, e.Package)
		}
	}
	slices.Sort(p)
	slices.Sort(order)
	dir, err := os.MkdirTemp("", "fyjob-")
	if err != nil {
		return nil, none, err
	}
	defer os.RemoveAll(dir)
	var all bytes.Buffer
	for _, pkg := range order {
		bin := filepath.Join(dir, "test")
		if _, err := output(command[0], slices.Concat([]string{"test", "-c", "-o=" + bin}, flags, []string{pkg})); err != nil {
			return nil, none, err
		}
		d, err := digestOf([]string{bin})
		if err != nil {
			return nil, none, err
		}
		fmt.Fprintln(&all, pkg, d)
	}
	return p, cas.Sum(all.Bytes()), nil
}

// output runs a command to its end; what it says on standard error is passed on.
func output(name string, args []string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		_, _ = os.Stderr.Write(out)
		return nil, exitf(exitRejected, "%s %s: %v", name, strings.Join(args, " "), err)
	}
	return out, nil
}

// pytestPlan takes the node ids out of `pytest --collect-only -q`.
func pytestPlan(command []string) (p cursor.Plan, err error) {
	out, err := output(command[0], command[1:])
	for line := range strings.Lines(string(out)) {
		if id := strings.TrimRight(line, "\r\n"); strings.Contains(id, "::") && !strings.HasPrefix(id, " ") {
			p = append(p, id)
		}
	}
	return p, err
}

// maxPattern bounds the argument of -run: the tests of a large package are run in parts.
const maxPattern = 64 << 10

// runGo runs what remains, package by package. A package that ends before all its tests did
// has one that ended its process: that one is an error, and the others run again.
func (h *helper) runGo(s suite, command []string) error {
	flags, _, err := goCommand(command)
	if err != nil {
		return err
	}
	for {
		st, err := h.state(s)
		if err != nil {
			return err
		}
		left := st.Remaining()
		if len(left) == 0 {
			return nil
		}
		if stop, err := h.stopped(); err != nil || stop {
			return errors.Join(err, errStop)
		}
		pkg := cursor.Suite(left[0])
		var names []string
		size := 0
		for _, id := range left {
			if name, ok := strings.CutPrefix(id, pkg+"::"); ok && size < maxPattern {
				names, size = append(names, regexp.QuoteMeta(name)), size+len(name)+1
			}
		}
		args := slices.Concat([]string{"test", "-json", "-run=^(" + strings.Join(names, "|") + ")$"}, flags, []string{pkg})
		ended, err := h.goPackage(s, pkg, exec.Command(command[0], args...))
		if err != nil {
			return err
		}
		if ended == 0 {
			return exitf(exitRejected, "no test of %s ended", pkg)
		}
	}
}

// goPackage runs one package and returns how many of its tests ended.
func (h *helper) goPackage(s suite, pkg string, cmd *exec.Cmd) (ended int, err error) {
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	var open []string
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return ended, err
		}
		n, err := h.goLine(s, pkg, line, &open)
		if ended += n; err != nil {
			_ = cmd.Process.Kill() // its tests go with the job's tree
			return ended, err
		}
	}
	_ = cmd.Wait() // what it says is in its events
	for _, id := range open {
		if err := h.end(s, id, cursor.Error); err != nil {
			return ended, err
		}
		ended++
	}
	return ended, nil
}

// goLine takes one event in: 1 if it ended a test.
func (h *helper) goLine(s suite, pkg string, line []byte, open *[]string) (int, error) {
	var e goEvent
	if json.Unmarshal(line, &e) != nil {
		_, err := h.out.Write(line)
		return 0, err
	}
	id := pkg + "::" + e.Test
	switch {
	case e.Action == "output":
		_, err := io.WriteString(h.out, e.Output)
		return 0, err
	case e.Test == "" || strings.Contains(e.Test, "/") || !s.has(id):
		return 0, nil
	case e.Action == "run":
		if stop, err := h.stopped(); err != nil || stop {
			return 0, errors.Join(err, errStop)
		}
		*open = append(*open, id)
		return 0, h.recordIn(s, id, cursor.Start, "", "")
	case e.Action == "pass" || e.Action == "fail" || e.Action == "skip":
		*open = slices.DeleteFunc(*open, func(x string) bool { return x == id })
		return 1, h.end(s, id, cursor.Outcome(e.Action))
	}
	return 0, nil
}
