package ptree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// markVariable is the one variable that the fallback adds, so that a process which
// left session and parents behind is still known, by a later process of the
// runner too. A workload can wipe it: the fallback is weaker, and its probe
// lists no limits.
const markVariable = "FORGEYARD_EXECUTION"

func markOf(id string) string { return markVariable + "=" + id }

// adoptOrphans makes this process the parent of descendants whose own has ended.
func adoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return forgeyard.E("execute", forgeyard.Unavailable, fmt.Errorf("adopt orphans: %w", err))
	}
	return nil
}

// scanner finds a tree without a control group. It is a value of what identifies
// the tree; each call reads /proc anew.
type scanner struct {
	mark  []byte
	pid   int // 0: known by the mark alone
	birth uint64
}

func newScanner(id string, pid int, birth uint64) *scanner {
	return &scanner{mark: []byte(markOf(id)), pid: pid, birth: birth}
}

// members lists live processes of the tree: the program, its session, whoever
// carries the mark, and all descendants of these.
func (s *scanner) members() ([]executor.Proc, error) {
	all, err := executor.Processes()
	if err != nil {
		return nil, err
	}
	in := map[int]bool{}
	for _, p := range all {
		same := p.PID == s.pid && p.Birth == s.birth
		session := s.pid != 0 && p.Session == s.pid && p.Birth >= s.birth
		in[p.PID] = same || session || marked(p.PID, s.mark)
	}
	delete(in, os.Getpid())
	for grew := true; grew; {
		grew = false
		for _, p := range all {
			if in[p.PPID] && !in[p.PID] {
				in[p.PID], grew = true, true
			}
		}
	}
	var out []executor.Proc
	for _, p := range all {
		if in[p.PID] && p.PID != os.Getpid() {
			out = append(out, p)
		}
	}
	return out, nil
}

func marked(pid int, mark []byte) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	for _, e := range bytes.Split(b, []byte{0}) {
		if bytes.Equal(e, mark) {
			return true
		}
	}
	return false
}

func (s *scanner) procs() ([]int, error) {
	ps, err := s.members()
	var out []int
	for _, p := range ps {
		if p.Alive() {
			out = append(out, p.PID)
		}
	}
	return out, err
}

func (s *scanner) signalAll(sig syscall.Signal, skip func(int) bool) error {
	ps, err := s.members()
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range ps {
		if skip == nil || !skip(p.PID) {
			_, err := executor.SignalExactly(p.PID, p.Birth, sig)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// kill stops the members before it kills them, so that none forks away from the
// list that was just read, and goes round until a reading finds nobody.
func (s *scanner) kill(ctx context.Context) error {
	seen := map[int]executor.Proc{}
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		ps, err := s.members()
		if err != nil {
			return err
		}
		alive := 0
		for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
			for _, p := range ps {
				if !p.Alive() {
					continue
				}
				if sent, err := executor.SignalExactly(p.PID, p.Birth, sig); err != nil || sent {
					alive++
				}
			}
		}
		for _, p := range ps {
			seen[p.PID] = p
		}
		s.reap(seen)
		if alive == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return forgeyard.Errorf("kill", forgeyard.Unavailable, "processes still run after SIGKILL")
		case <-time.After(wait):
		}
	}
}

// reap collects adopted orphans; the program itself is collected by its waiter.
// A zombie has no environment left to carry the mark, so those seen alive are remembered.
func (s *scanner) reap(seen map[int]executor.Proc) {
	for pid, was := range seen {
		now, err := executor.ReadProc(pid)
		if pid != s.pid && err == nil && now.Birth == was.Birth && now.PPID == os.Getpid() {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}
