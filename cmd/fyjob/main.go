// Command fyjob is the workload's side of the checkpoint protocol: a small static
// helper for scripts and programs that run under Forgeyard.
//
// It reads and writes files in FORGEYARD_CTL_DIR and FORGEYARD_CKPT_DIR and does
// nothing else: no network, no socket, no daemon. It trusts what its runner put there.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Exit codes (FYCP/1 §5). Append only: scripts branch on them.
const (
	exitDone     = 0
	exitNo       = 1
	exitUsage    = 2
	exitStaged   = 3
	exitRejected = 4
	exitStale    = 5
	exitOutside  = 6
	exitLimit    = 7
	exitAlready  = 8
	exitOpen     = 9
)

func main() {
	os.Exit(run(os.Args[1:], os.Getenv, time.Now, os.Stdout, os.Stderr))
}

// verb is one command: its words, and what it does with what follows them.
type verb struct {
	words string
	do    func(*helper, []string) error
}

func verbs() []verb {
	return []verb{
		{"ckpt should", (*helper).should},
		{"ckpt should-exit", (*helper).shouldExit},
		{"ckpt begin", (*helper).begin},
		{"ckpt commit", (*helper).commit},
		{"ckpt abort", (*helper).abort},
		{"restore path", (*helper).restorePath},
		{"restore ok", (*helper).restoreOK},
		{"restore reject", (*helper).restoreReject},
		{"critical begin", (*helper).criticalBegin},
		{"critical end", (*helper).criticalEnd},
		{"progress", (*helper).progress},
		{"effect begin", (*helper).effectBegin},
		{"effect done", (*helper).effectDone},
		{"effect abort", (*helper).effectAbort},
		{"cursor plan", (*helper).cursorPlan},
		{"cursor next", (*helper).cursorNext},
		{"cursor start", (*helper).cursorStart},
		{"cursor done", (*helper).cursorDone},
		{"cursor run", (*helper).cursorRun},
		{"cursor report", (*helper).cursorReport},
		{"mark set", (*helper).markSet},
		{"why", (*helper).why},
		{"doctor", (*helper).doctor},
	}
}

// run is the whole program with its surroundings passed in.
func run(args []string, getenv func(string) string, now func() time.Time, stdout, stderr io.Writer) int {
	if wantsHelp(args) {
		fmt.Fprint(stdout, helpText)
		return exitDone
	}
	for _, v := range verbs() {
		words := strings.Fields(v.words)
		if len(args) < len(words) || strings.Join(args[:len(words)], " ") != v.words {
			continue
		}
		h, err := newHelper(getenv, now, stdout)
		if err == nil {
			err = v.do(h, args[len(words):])
		}
		return report(err, "fyjob "+v.words, stderr)
	}
	fmt.Fprintf(stderr, "fyjob: %q is no command; fyjob --help lists them\n", strings.Join(args, " "))
	return exitUsage
}

// wantsHelp looks for a request for help anywhere before `--`.
func wantsHelp(args []string) bool {
	for i, a := range args {
		switch {
		case a == "--":
			return false
		case a == "--help" || a == "-h" || (i == 0 && a == "help"):
			return true
		}
	}
	return false
}

// exit is an error with its exit code. An empty text is said by the code alone.
type exit struct {
	code int
	text string
}

func (e *exit) Error() string { return e.text }

func exitf(code int, format string, args ...any) error {
	return &exit{code, fmt.Sprintf(format, args...)}
}

// no is the answer of a question.
func no() error { return &exit{code: exitNo} }

func report(err error, op string, stderr io.Writer) int {
	if err == nil {
		return exitDone
	}
	code := exitRejected // A file that cannot be read or written: nothing was committed.
	if e := (*exit)(nil); errors.As(err, &e) {
		code = e.code
	}
	if err.Error() != "" {
		fmt.Fprintf(stderr, "%s: %v\n", op, err)
	}
	return code
}

// parse reads flags and arguments in any order and returns the arguments.
func parse(fs *flag.FlagSet, args []string, want int, usage string) ([]string, error) {
	fs.SetOutput(io.Discard)
	var rest []string
	for {
		if err := fs.Parse(args); err != nil {
			return nil, exitf(exitUsage, "%v; usage: %s", err, usage)
		}
		if fs.NArg() == 0 {
			break
		}
		rest, args = append(rest, fs.Arg(0)), fs.Args()[1:]
	}
	if len(rest) != want {
		return nil, exitf(exitUsage, "%d arguments, %d expected; usage: %s", len(rest), want, usage)
	}
	return rest, nil
}

// none is parse for verbs that take nothing.
func none(args []string, usage string) error {
	_, err := parse(flag.NewFlagSet("", flag.ContinueOnError), args, 0, usage)
	return err
}
