// Package cli is the shell that our command lines stand in: how an error becomes
// one line and an exit code, how facts are printed as text or JSON, how long work
// shows its progress, and how a person reads durations and sizes.
//
// It knows no command and no service. Each rule of the interface that holds for all
// commands is kept here once:
//
//	stdout   facts, as text or JSON, and nothing else
//	stderr   messages for people: errors, hints, progress
//	exit     the kind of the error; a wrong command line is 2
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/api/render"
	"github.com/forgeyard/forgeyard-node/internal/durable"
	"github.com/forgeyard/forgeyard-node/internal/strictyaml"
)

// Shell is one invocation of a program.
type Shell struct {
	Program string // as its name stands in messages
	In      io.Reader
	Out     io.Writer // facts
	Err     io.Writer // messages for people
	Getenv  func(string) string

	Output  string // text | json
	Verbose bool   // show the chain of an error

	started bool // a command's own code runs: what fails now is no usage error
}

// New is the shell of this process.
func New(program string) *Shell {
	return &Shell{Program: program, In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv}
}

// Command describes one command. A group has no Run and gets its commands added.
type Command struct {
	Use, Short, Long, Example string
	Aliases                   []string
	Args                      cobra.PositionalArgs // nil: none are taken
	Exits                     []int                // of exitMeaning, beyond 0, 2 and 7, which are always there: any output may find its disk full
	Hidden                    bool
	Run                       func(ctx context.Context, args []string) error
}

// exitMeaning is the table of the interface; help prints the lines that apply.
var exitMeaning = map[int]string{
	0: "done", 1: "failed", 2: "usage or invalid file", 3: "not found", 4: "conflict or stale", 5: "unavailable: no daemon, no quorum, no peer",
	6: "denied", 7: "a limit was hit", 130: "interrupted",
}

var exitOrder = []int{0, 1, 2, 3, 4, 5, 6, 7, 130}

// Build makes the cobra command.
func (s *Shell) Build(c Command) *cobra.Command {
	out := &cobra.Command{Use: c.Use, Short: c.Short, Long: c.Long, Example: c.Example, Aliases: c.Aliases, Hidden: c.Hidden, Args: c.Args, SilenceErrors: true, SilenceUsage: true}
	out.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, "%v", err) })
	if c.Long == "" {
		out.Long = c.Short + "."
	}
	if c.Run == nil {
		out.Args = cobra.ArbitraryArgs // checked below, in our own words
		out.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, args[0])
		}
		return out
	}
	args := c.Args
	if args == nil {
		args = cobra.NoArgs
	}
	out.Args = func(cmd *cobra.Command, words []string) error {
		if err := args(cmd, words); err != nil {
			return usage(cmd, "%s: %s", cmd.Use, strings.ReplaceAll(err.Error(), "arg(s)", "arguments"))
		}
		return nil
	}
	out.Long += "\n\nExit codes: " + exits(c.Exits)
	out.RunE = func(cmd *cobra.Command, args []string) error {
		if s.Output != "" && s.Output != "text" && s.Output != "json" {
			return usage(cmd, "-o %q is not text or json", forgeyard.Clip(s.Output, 40))
		}
		s.started = true
		return c.Run(cmd.Context(), args)
	}
	return out
}

func exits(own []int) string {
	uses := map[int]bool{0: true, 2: true, 7: true}
	for _, e := range own {
		uses[e] = true
	}
	var parts []string
	for _, e := range exitOrder {
		if uses[e] {
			parts = append(parts, fmt.Sprintf("%d %s", e, exitMeaning[e]))
		}
	}
	return strings.Join(parts, " · ")
}

func unknownCommand(cmd *cobra.Command, word string) error {
	text := fmt.Sprintf("%q is no command of %s", forgeyard.Clip(word, 40), cmd.CommandPath())
	if near := cmd.SuggestionsFor(word); len(near) > 0 {
		text += fmt.Sprintf(", did you mean %q?", near[0])
	}
	return usage(cmd, "%s", text)
}

func usage(cmd *cobra.Command, format string, args ...any) error {
	return forgeyard.Errorf("", forgeyard.Invalid, format, args...).WithHint("see: %s --help", cmd.CommandPath())
}

// Usage is the error of a command line that is wrong in a way only the command sees.
func (s *Shell) Usage(command, format string, args ...any) error {
	return forgeyard.Errorf(command, forgeyard.Invalid, format, args...).WithHint("see: %s %s --help", s.Program, command)
}

// Execute runs the command line and returns the exit code.
func (s *Shell) Execute(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	f := root.PersistentFlags()
	f.StringVarP(&s.Output, "output", "o", "text", "how facts are printed: text or json")
	f.BoolFunc("json", "the same as -o json", func(string) error { s.Output = "json"; return nil })
	f.BoolVar(&s.Verbose, "verbose", false, "show the whole chain of an error")
	err := root.ExecuteContext(ctx)
	if err != nil && !s.started && forgeyard.KindOf(err) == forgeyard.Other {
		err = forgeyard.E("", forgeyard.Invalid, err).WithHint("see: %s --help", s.Program) // cobra's own: the command line is wrong
	}
	if err != nil && ctx.Err() != nil && strings.HasSuffix(err.Error(), context.Canceled.Error()) {
		err = forgeyard.E("", forgeyard.Interrupted, errors.New("interrupted"))
	}
	s.report(err)
	return ExitCode(err)
}

// quiet is an exit code whose reason was told already.
type quiet struct{ code int }

func (q quiet) Error() string { return fmt.Sprintf("exit code %d", q.code) }

// Exit ends with a code and without a line: the command has said all.
func Exit(code int) error {
	if code == 0 {
		return nil
	}
	return quiet{code}
}

// ExitCode is the code of an error.
func ExitCode(err error) int {
	var q quiet
	switch {
	case err == nil:
		return 0
	case errors.As(err, &q):
		return q.code
	}
	return forgeyard.KindOf(err).ExitCode()
}

func (s *Shell) report(err error) {
	var q quiet
	if err == nil || errors.As(err, &q) {
		return
	}
	for _, line := range lines(err) {
		fmt.Fprintf(s.Err, "%s: %s\n", s.Program, line)
	}
	if !s.Verbose {
		return
	}
	for depth := 1; err != nil; depth++ {
		kind := ""
		var e *forgeyard.Error
		if errors.As(err, &e) && error(e) == err {
			kind = " [" + e.Kind.String() + "]"
		}
		fmt.Fprintf(s.Err, "  %d: %T%s: %s\n", depth, err, kind, strings.ReplaceAll(err.Error(), "\n", "; "))
		err = errors.Unwrap(err)
	}
}

// lines is one line, but for a file with several faults: that has one for each.
func lines(err error) []string {
	text := strings.TrimSpace(err.Error())
	var file strictyaml.Problems
	if errors.As(err, &file) {
		return strings.Split(text, "\n")
	}
	text = strings.Join(strings.Fields(text), " ") // libraries list what they tried
	// What failed here and far away may have one name: it is said once.
	for {
		op, rest, ok := strings.Cut(text, ": ")
		if !ok || !strings.HasPrefix(rest, op+": ") {
			return []string{text}
		}
		text = rest
	}
}

// JSON reports whether facts are printed as JSON.
func (s *Shell) JSON() bool { return s.Output == "json" }

// Note tells a person something on stderr.
func (s *Shell) Note(format string, args ...any) { fmt.Fprintf(s.Err, format+"\n", args...) }

// Print prints one message of the API: as JSON, or by the given text.
func (s *Shell) Print(m proto.Message, text func(*Page)) error {
	if s.JSON() {
		return s.broken(render.JSON(s.Out, m))
	}
	return s.Text(text)
}

// Text prints a page.
func (s *Shell) Text(text func(*Page)) error {
	p := newPage(s.Out)
	text(p)
	return s.broken(p.flush())
}

// PrintValue is Print for facts that are no message of the API; v has snake_case keys.
func (s *Shell) PrintValue(v any, text func(*Page)) error {
	if !s.JSON() {
		return s.Text(text)
	}
	e := json.NewEncoder(s.Out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return s.broken(e.Encode(v))
}

// PrintList prints messages as one array, or by the given text.
func PrintList[M proto.Message](s *Shell, all []M, text func(*Page)) error {
	if s.JSON() {
		return s.broken(render.List(s.Out, all))
	}
	return s.Text(text)
}

// Line prints one message of a stream: a line of NDJSON, or the given text.
func (s *Shell) Line(m proto.Message, text string) error {
	if s.JSON() {
		return s.broken(render.NDJSON(s.Out, m))
	}
	_, err := fmt.Fprintln(s.Out, text)
	return s.broken(err)
}

// broken explains a stdout that takes no more.
func (s *Shell) broken(err error) error {
	if err == nil {
		return nil
	}
	if durable.Full(err) {
		return forgeyard.E("write to stdout", forgeyard.NoSpace, err).WithHint("free space where the output goes, or send it elsewhere")
	}
	return forgeyard.E("write to stdout", forgeyard.Other, err)
}
