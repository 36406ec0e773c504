package localsite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// Daemon is a process that was started here. Its output goes to a file, so that it
// can outlive this process.
type Daemon struct {
	Name string
	Log  string // path of what it wrote
	PID  int

	cmd     *exec.Cmd
	done    chan struct{} // closed when it has ended; err is set before
	err     error
	allowed atomic.Bool // it was asked to end
}

func (s *Site) start(name, program string, env []string, args ...string) (*Daemon, error) {
	d := &Daemon{Name: name, Log: filepath.Join(s.Dir, name+".log"), done: make(chan struct{})}
	out, err := os.OpenFile(d.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the process has its own
	d.cmd = exec.Command(program, args...)
	d.cmd.Env = append(plainEnv(), env...)
	d.cmd.Stdout, d.cmd.Stderr = out, out
	ownGroup(d.cmd) // Ctrl-C on the terminal is ours to handle
	if err := s.launch(name, d.cmd); err != nil {
		return nil, forgeyard.E("start "+name, forgeyard.Unavailable, err)
	}
	d.PID = d.cmd.Process.Pid
	s.mu.Lock()
	s.daemons = append(s.daemons, d)
	s.mu.Unlock()
	go func() {
		d.err = d.cmd.Wait()
		close(d.done)
	}()
	return d, nil
}

// started are all daemons that ever were.
func (s *Site) started() []*Daemon {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.daemons)
}

func (s *Site) launch(name string, c *exec.Cmd) error {
	if s.Launch == nil {
		return c.Start()
	}
	return s.Launch(name, c)
}

// plainEnv is our own environment without what would steer the programs.
func plainEnv() []string {
	var out []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "FORGEYARD_") && !strings.HasPrefix(kv, "NOTIFY_SOCKET=") {
			out = append(out, kv)
		}
	}
	return out
}

// Allow says that the daemon may end: what is done to its machine may end it.
func (d *Daemon) Allow() { d.allowed.Store(true) }

// Kill is kill -9: it returns when the process is gone.
func (d *Daemon) Kill() error {
	d.allowed.Store(true)
	if err := d.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return forgeyard.E("kill "+d.Name, forgeyard.Other, err)
	}
	<-d.done
	return nil
}

// Kill is kill -9 of the node's daemon.
func (n *Node) Kill() error {
	d := n.Daemon
	if d == nil {
		return nil
	}
	n.Daemon = nil
	return d.Kill()
}

// running reports whether the process has not ended.
func (d *Daemon) running() bool {
	select {
	case <-d.done:
		return false
	default:
		return true
	}
}

// Unasked names a daemon that ended by itself.
func (s *Site) Unasked() error {
	for _, d := range s.started() {
		if !d.running() && !d.allowed.Load() {
			return forgeyard.Errorf(d.Name, forgeyard.Unavailable, "the daemon ended by itself: %v", d.err)
		}
	}
	return nil
}

// Running lists the daemons that run.
func (s *Site) Running() []*Daemon {
	var out []*Daemon
	for _, d := range s.started() {
		if d.running() {
			out = append(out, d)
		}
	}
	return out
}

// stopGrace is what a daemon gets for an orderly end.
const stopGrace = 8 * time.Second

// Stop ends every process that was started, in order where it answers, and returns
// when all are gone.
func (s *Site) Stop() {
	all := s.Running()
	for _, d := range all {
		d.allowed.Store(true)
		if err := terminate(d.cmd.Process); err != nil {
			_ = d.cmd.Process.Kill() // it is gone, or cannot be asked
		}
	}
	late := time.NewTimer(stopGrace)
	defer late.Stop()
	for _, d := range all {
		select {
		case <-d.done:
		case <-late.C:
			s.killAll()
		}
	}
	s.killAll()
}

func (s *Site) killAll() {
	for _, d := range s.Running() {
		_ = d.Kill() // the only error is that it is gone
	}
}

// Tails are the last lines of every daemon's log, for whoever looks for a fault.
func (s *Site) Tails(lines int) string {
	var b strings.Builder
	seen := map[string]bool{}
	for _, d := range s.started() {
		if seen[d.Log] {
			continue
		}
		seen[d.Log] = true
		text, err := os.ReadFile(d.Log)
		if err != nil {
			text = []byte(err.Error())
		}
		fmt.Fprintf(&b, "--- %s, the last lines of %s\n%s\n", d.Name, d.Log, tail(string(text), lines))
	}
	return b.String()
}

// tail is the last lines of a text.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Command runs one command line to its end and returns what it printed on stdout. Its
// stderr is part of the error when it fails.
func (s *Site) Command(ctx context.Context, program string, env []string, stdin string, args ...string) (string, error) {
	return s.command(ctx, func(c *exec.Cmd) error { return c.Start() }, program, env, stdin, args...)
}

// Command runs a command line of the node's program where the node's daemon runs.
func (n *Node) Command(ctx context.Context, stdin string, args ...string) (string, error) {
	return n.site.command(ctx, func(c *exec.Cmd) error { return n.site.launch(n.Name, c) }, n.site.Programs.Node, n.Env(), stdin, args...)
}

func (s *Site) command(ctx context.Context, start func(*exec.Cmd) error, program string, env []string, stdin string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, program, args...)
	var out, errs bytes.Buffer
	c.Env, c.Dir, c.Stdin, c.Stdout, c.Stderr = append(plainEnv(), env...), s.Dir, strings.NewReader(stdin), &out, &errs
	ownGroup(c)
	err := start(c)
	if err == nil {
		err = c.Wait()
	}
	if err != nil {
		if ctx.Err() != nil {
			return "", forgeyard.E(filepath.Base(program), forgeyard.Interrupted, context.Cause(ctx))
		}
		return out.String(), forgeyard.Errorf(filepath.Base(program)+" "+strings.Join(args, " "), forgeyard.Other, "%v: %s", err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}
