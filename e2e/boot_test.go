package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// upFor is how long a machine has been up when its daemon starts.
const upFor = 20 * time.Second

// canBoot says why no daemon can be given another boot here, or nil.
func canBoot() error {
	return exec.Command("unshare", "--mount", "--time", "--boottime", "1", "true").Run()
}

// boot lets the machine of a daemon begin anew: all that it ran is gone with its control groups,
// and the daemon that comes next sees another boot, whose clocks begin anew.
func boot(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 || neg {
		ts.Fatalf("usage: boot NAME")
	}
	w, name := worldOf(ts), args[0]
	if p := w.procs[name]; p != nil && p.cmd.ProcessState == nil {
		ts.Check(powerOff(p))
	}
	ts.Check(os.WriteFile(w.bootFile(name), fmt.Appendf(nil, "%s-%d\n", name, time.Now().UnixNano()), 0o600))
	w.boots[name] = true
}

func (w *world) bootFile(name string) string { return filepath.Join(w.work, "boot-of-"+name) }

// booted wraps the command of a daemon, so that it runs in the boot that was made for it.
func (w *world) booted(name string, cmd *exec.Cmd) (*exec.Cmd, error) {
	if !w.boots[name] {
		return cmd, nil
	}
	up, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return nil, err
	}
	seconds, _, _ := strings.Cut(string(up), ".")
	n, err := strconv.Atoi(seconds)
	if err != nil {
		return nil, err
	}
	back := strconv.Itoa(-max(0, n-int(upFor.Seconds())))
	// Where something is mounted into /proc the kernel mounts no other one in a sandbox, unless
	// there is one without.
	whole := filepath.Join(w.work, "proc")
	if err := os.MkdirAll(whole, 0o700); err != nil {
		return nil, err
	}
	inside := []string{"--mount", "--time", "--boottime", back, "--monotonic", back,
		"sh", "-c", `mount -t proc proc "$0" && mount --bind "$1" /proc/sys/kernel/random/boot_id && shift && exec "$@"`, whole, w.bootFile(name)}
	return exec.Command("unshare", append(inside, cmd.Args...)...), nil
}

// powerOff ends a daemon and all that it started. It is stopped first: so it starts nothing
// that is not seen.
func powerOff(p *proc) error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	own, err := groupsOf(p.cmd.Process.Pid)
	if err != nil {
		return err
	}
	var left []string
	for end := time.Now().Add(goneWithin); ; time.Sleep(10 * time.Millisecond) {
		alive := descendants(p.cmd.Process.Pid)
		if len(alive) == 0 {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("%v run on after %s", alive, goneWithin)
		}
		for _, pid := range alive {
			g, _ := groupsOf(pid) // it may have ended in between
			left = append(left, g...)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	p.kill()
	slices.Sort(left)
	var errs []error
	for _, dir := range slices.Backward(slices.Compact(left)) {
		if !slices.Contains(own, dir) {
			errs = append(errs, removeGroup(dir))
		}
	}
	return errors.Join(errs...)
}

// removeGroup waits for the kernel, which counts a dead process for a moment more.
func removeGroup(dir string) error {
	for end := time.Now().Add(goneWithin); ; time.Sleep(10 * time.Millisecond) {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if time.Now().After(end) {
			return err
		}
	}
}

// descendants lists who has a process above it, without the dead.
func descendants(root int) (out []int) {
	parents := map[int]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		text := string(b)
		f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		pid, err1 := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		up, err2 := strconv.Atoi(f[1])
		if err1 == nil && err2 == nil && f[0] != "Z" {
			parents[pid] = up
		}
	}
	for pid := range parents {
		for up := parents[pid]; up > 1; up = parents[up] {
			if up == root {
				out = append(out, pid)
				break
			}
		}
	}
	return out
}

// groupsOf lists the folders of a process's control groups.
func groupsOf(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || f[2] == "/" {
			continue
		}
		roots := []string{strings.TrimPrefix(f[1], "name=")}
		if f[1] == "" { // of version 2, alone or beside version 1
			roots = []string{"", "unified"}
		}
		for _, root := range roots {
			if dir := filepath.Join("/sys/fs/cgroup", root, f[2]); isDir(dir) {
				out = append(out, dir)
			}
		}
	}
	return out, nil
}

func isDir(name string) bool {
	st, err := os.Stat(name)
	return err == nil && st.IsDir()
}
