package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/cursor"
	"github.com/forgeyard/forgeyard-node/job"
)

// suite is what this epoch knows of its list of tests.
type suite struct {
	plan    cursor.Plan
	binding cursor.Binding
	before  []cursor.Record // of older epochs, as far as they count
	dropped string          // why they do not
}

// inFramework refuses where there is no list of tests.
func (h *helper) inFramework() error {
	if h.mode != checkpoint.ModeFramework || h.testPlan == "" || h.cursorOut == "" {
		return exitf(exitRejected, "the job's resume mode is %q: cursors are of mode framework", h.mode)
	}
	return nil
}

// loadSuite reads what `cursor plan` wrote.
func (h *helper) loadSuite() (suite, error) {
	var s suite
	if err := h.inFramework(); err != nil {
		return s, err
	}
	b, err := os.ReadFile(h.testPlan)
	if errors.Is(err, fs.ErrNotExist) {
		return s, exitf(exitUsage, "there is no plan yet: `fyjob cursor plan` makes it")
	}
	if err != nil {
		return s, err
	}
	if s.plan, err = cursor.ParsePlan(b); err != nil {
		return s, err
	}
	if b, err = os.ReadFile(h.bindingFile()); err != nil {
		return s, err
	}
	if s.binding, err = cursor.ParseBinding(b); err != nil {
		return s, err
	}
	return s, h.carry(&s)
}

func (h *helper) bindingFile() string {
	return filepath.Join(filepath.Dir(h.testPlan), checkpoint.BindingName)
}

// carry takes over the records of the restored cursor, if they are of the same list, binary
// and isolation.
func (h *helper) carry(s *suite) error {
	if h.cursorIn == "" {
		return nil
	}
	b, err := os.ReadFile(filepath.Join(filepath.Dir(h.cursorIn), checkpoint.BindingName))
	if err != nil {
		return err
	}
	old, err := cursor.ParseBinding(b)
	if err != nil {
		return err
	}
	if f := s.binding.Carries(old); !f.OK() {
		s.dropped = f.Reason()
		return nil
	}
	if b, err = os.ReadFile(h.cursorIn); err != nil {
		return err
	}
	l, err := cursor.Decode(b)
	s.before = l.Records
	return err
}

// state folds all records, those of older epochs first.
func (h *helper) state(s suite) (cursor.State, error) {
	b, err := os.ReadFile(h.cursorOut)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cursor.State{}, err
	}
	l, err := cursor.Decode(b)
	if err != nil {
		return cursor.State{}, err
	}
	all, err := cursor.Merge(s.before, l.Records, h.epoch)
	if err != nil {
		return cursor.State{}, err
	}
	return cursor.Fold(s.plan, all, s.binding.Isolation, h.epoch)
}

const planUsage = "fyjob cursor plan [--format list|go|pytest|cargo|nextest] [--binary FILE]... [-- COMMAND...]"

// cursorPlan writes the list of tests: from standard input, or from what a command lists.
func (h *helper) cursorPlan(args []string) error {
	if err := h.inFramework(); err != nil {
		return err
	}
	own, command := split(args)
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	format := flags.String("format", "list", "")
	var binaries []string
	flags.Func("binary", "", func(s string) error { binaries = append(binaries, s); return nil })
	if _, err := parse(flags, own, 0, planUsage); err != nil {
		return err
	}
	var p cursor.Plan
	var binary forgeyard.Digest
	var err error
	switch {
	case *format == "go" && len(command) > 0:
		p, binary, err = h.goPlan(command)
	case *format == "pytest" && len(command) > 0:
		p, err = pytestPlan(command)
	case (*format == "cargo" || *format == "nextest") && len(command) > 0:
		var tests []cursor.RustTest
		if tests, err = rustTests(*format, command); err == nil {
			p, binary, err = rustPlan(tests)
		}
	case *format == "list" && len(command) == 0:
		var b []byte
		if b, err = io.ReadAll(io.LimitReader(os.Stdin, cursor.MaxBytes+1)); err == nil {
			p, err = cursor.ParsePlan(b)
		}
	default:
		return exitf(exitUsage, "format %q with the command %q: list reads standard input, all others need a command; usage: %s", *format, command, planUsage)
	}
	if err != nil {
		return err
	}
	if len(binaries) > 0 {
		if binary, err = digestOf(binaries); err != nil {
			return err
		}
	}
	_, err = h.setPlan(p, binary)
	return err
}

// split divides arguments at `--`.
func split(args []string) (own, rest []string) {
	for i, a := range args {
		if a == "--" {
			return args[:i], args[i+1:]
		}
	}
	return args, nil
}

// digestOf names some files together, in order.
func digestOf(files []string) (forgeyard.Digest, error) {
	var all bytes.Buffer
	for _, f := range files {
		x, err := hashFile(f)
		if err != nil {
			return forgeyard.Digest{}, err
		}
		all.WriteString(x.BLAKE3.String() + "\n")
	}
	return cas.Sum(all.Bytes()), nil
}

// setPlan writes the plan and what results are bound to, and says on standard error when
// older results do not count. An epoch has one list.
func (h *helper) setPlan(p cursor.Plan, binary forgeyard.Digest) (suite, error) {
	if _, err := cursor.ParsePlan(p.Encode()); err != nil {
		return suite{}, err
	}
	s := suite{plan: p, binding: cursor.Bind(p, binary, job.Isolation(h.isolation))}
	if b, err := os.ReadFile(h.bindingFile()); err == nil && !bytes.Equal(b, s.binding.Encode()) {
		return suite{}, exitf(exitRejected, "this epoch has another plan already: one job has one list of tests")
	}
	if err := h.carry(&s); err != nil {
		return suite{}, err
	}
	if s.dropped != "" {
		fmt.Fprintf(os.Stderr, "fyjob: every test runs again: %s\n", s.dropped)
	}
	// The binding names the list, so it comes last: until then there is none.
	if err := replaceFile(h.testPlan, p.Encode()); err != nil {
		return suite{}, err
	}
	return s, replaceFile(h.bindingFile(), s.binding.Encode())
}

// cursorNext prints the tests that remain.
func (h *helper) cursorNext(args []string) error {
	if err := none(args, "fyjob cursor next"); err != nil {
		return err
	}
	s, err := h.loadSuite()
	if err != nil {
		return err
	}
	st, err := h.state(s)
	if err != nil {
		return err
	}
	left := st.Remaining()
	if len(left) == 0 {
		return no()
	}
	return h.print(strings.Join(left, "\n"))
}

func (h *helper) cursorStart(args []string) error {
	rest, err := parse(flag.NewFlagSet("", flag.ContinueOnError), args, 1, "fyjob cursor start ID")
	if err != nil {
		return err
	}
	return h.record(rest[0], cursor.Start, "", "")
}

func (h *helper) cursorDone(args []string) error {
	const usage = "fyjob cursor done ID --outcome pass|fail|skip|error [--evidence TEXT]"
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	outcome, evidence := flags.String("outcome", "", ""), flags.String("evidence", "", "")
	rest, err := parse(flags, args, 1, usage)
	if err != nil {
		return err
	}
	if !cursor.Outcome(*outcome).Known() || len(*evidence) > checkpoint.MaxText {
		return exitf(exitUsage, "outcome %q, evidence of %d bytes (at most %d); usage: %s", forgeyard.Clip(*outcome, 40), len(*evidence), checkpoint.MaxText, usage)
	}
	return h.record(rest[0], cursor.End, cursor.Outcome(*outcome), *evidence)
}

// record appends one line and returns when it is on the disk. Helpers that run at once take
// turns; what a killed one left half written is cut off.
func (h *helper) record(id string, e cursor.Event, o cursor.Outcome, evidence string) (err error) {
	s, err := h.loadSuite()
	if err != nil {
		return err
	}
	return h.recordIn(s, id, e, o, evidence)
}

func (h *helper) recordIn(s suite, id string, e cursor.Event, o cursor.Outcome, evidence string) (err error) {
	if !s.has(id) {
		return exitf(exitUsage, "test %q is not in the plan", forgeyard.Clip(id, 80))
	}
	f, err := os.OpenFile(h.cursorOut, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }() // and with it the lock goes
	if err := lockFile(f); err != nil {
		return err
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	l, err := cursor.Decode(b)
	if err != nil {
		return err
	}
	r := cursor.Record{Seq: max(l.Last(), cursor.Log{Records: s.before}.Last()) + 1, Epoch: h.epoch, ID: id, Event: e, Outcome: o, Started: h.now().UnixMilli(), Evidence: evidence}
	if r.Seq > cursor.MaxRecords {
		return exitf(exitLimit, "%d records are the bound", cursor.MaxRecords)
	}
	if e == cursor.End {
		r.Ended = r.Started
		for _, x := range l.Records { // the last start of this test
			if x.ID == id && x.Event == cursor.Start {
				r.Started = x.Started
			}
		}
	}
	line, err := cursor.Encode([]cursor.Record{r})
	if err != nil {
		return err
	}
	if err := f.Truncate(int64(l.Good)); err != nil {
		return err
	}
	if _, err := f.WriteAt(line, int64(l.Good)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if len(b) == 0 {
		return syncDir(filepath.Dir(h.cursorOut))
	}
	return nil
}

func (s suite) has(id string) bool {
	for _, x := range s.plan {
		if x == id {
			return true
		}
	}
	return false
}

// cursorReport prints every test with its result, or writes it into a file.
func (h *helper) cursorReport(args []string) error {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	to := flags.String("to", "", "")
	if _, err := parse(flags, args, 0, "fyjob cursor report [--to FILE]"); err != nil {
		return err
	}
	s, err := h.loadSuite()
	if err != nil {
		return err
	}
	_, err = h.report(s, *to)
	return err
}

func (h *helper) report(s suite, to string) (cursor.Report, error) {
	st, err := h.state(s)
	if err != nil {
		return cursor.Report{}, err
	}
	r := st.Report()
	if to != "" {
		return r, replaceFile(to, r.Encode())
	}
	_, err = h.out.Write(r.Encode())
	return r, err
}

// markSet keeps a mark for the next epoch, and returns when the site has it.
func (h *helper) markSet(args []string) error {
	rest, err := parse(flag.NewFlagSet("", flag.ContinueOnError), args, 1, "fyjob mark set NAME")
	if err != nil {
		return err
	}
	if why := checkpoint.BadMark(rest[0]); why != "" {
		return exitf(exitUsage, "the mark %s", why)
	}
	n, err := h.post(checkpoint.Message{Kind: checkpoint.MessageMark, Reason: rest[0]})
	if err != nil {
		return err
	}
	a, ok, err := h.answered(n, h.window)
	switch {
	case err != nil:
		return err
	case !ok:
		return exitf(exitStaged, "no answer within %v: the mark is set when the runner can", h.window)
	case a.Status != checkpoint.StatusCommitted:
		return h.refused(a)
	}
	return nil
}
