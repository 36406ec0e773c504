package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// Group is the control group of one tree. Its methods may run concurrently,
// except Enter and Leave.
type Group struct {
	v1     map[string]string // controller → folder
	v2     string
	v2Ctl  []string
	parent map[string]string // controller → folder that the daemon's threads go back to
}

const cpuPeriod = 100_000 // microseconds; the kernel's default

// Create makes the group and sets its limits. A group of that name with processes
// in it gives Conflict: an attempt epoch runs once (E18).
func (h *Hierarchy) Create(id string, l executor.Limits) (*Group, error) {
	g := &Group{v1: map[string]string{}, v2Ctl: h.v2Ctl, parent: map[string]string{}}
	for c, parent := range h.v1 {
		g.v1[c] = filepath.Join(parent, id)
		g.parent[c] = filepath.Dir(parent)
	}
	if h.v2 != "" {
		g.v2 = filepath.Join(h.v2, id)
	}
	for _, d := range g.dirs() {
		err := os.MkdirAll(d, 0o755)
		if errors.Is(err, os.ErrNotExist) {
			err = os.MkdirAll(d, 0o755) // another tree's end took the parent away in between
		}
		if err != nil {
			return nil, errors.Join(forgeyard.E("cgroup create", forgeyard.Unavailable, err), g.Remove())
		}
	}
	h.giveWay()
	ps, err := g.Procs()
	if err != nil {
		return nil, forgeyard.E("cgroup create", forgeyard.Other, err)
	}
	if len(ps) > 0 {
		return nil, forgeyard.Errorf("cgroup create", forgeyard.Conflict, "group %s already holds %d processes: something of that name runs", id, len(ps))
	}
	if err := g.limit(l); err != nil {
		return nil, errors.Join(forgeyard.E("cgroup limit", forgeyard.Unavailable, err), g.Remove())
	}
	return g, nil
}

// giveWay weighs all workloads together at a quarter of what one other process has, so
// that the daemon's renewals are sent in time however many processes they have. It bounds
// nothing while the processors, or the disks, are free. A parent that does not take it is used
// as it is.
func (h *Hierarchy) giveWay() {
	if parent, ok := h.v1["cpu"]; ok {
		_ = os.WriteFile(filepath.Join(parent, "cpu.shares"), []byte("256"), 0o644)
	}
	if slices.Contains(h.v2Ctl, "cpu") {
		_ = os.WriteFile(filepath.Join(h.v2, "cpu.weight"), []byte("25"), 0o644)
	}
	if h.v2IO { // the log's writes stand before theirs in the same way
		_ = os.WriteFile(filepath.Join(h.v2, "io.weight"), []byte("default 25"), 0o644)
	}
}

// Dirs lists where the group of an id is, whether it exists or not.
func (h *Hierarchy) Dirs(id string) []string {
	var l []string
	for _, parent := range h.v1 {
		l = append(l, filepath.Join(parent, id))
	}
	if h.v2 != "" {
		l = append(l, filepath.Join(h.v2, id))
	}
	return l
}

// Open names a group that an earlier process made, by the folders it recorded.
// Folders outside a cgroup file system are refused.
func Open(dirs []string) (*Group, error) {
	g := &Group{v1: map[string]string{}}
	for _, d := range dirs {
		var st unix.Statfs_t
		err := unix.Statfs(d, &st)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, forgeyard.E("cgroup open", forgeyard.Unavailable, err)
		}
		switch st.Type {
		case unix.CGROUP2_SUPER_MAGIC:
			g.v2 = d
		case unix.CGROUP_SUPER_MAGIC:
			g.v1[d] = d
			if _, err := os.Stat(filepath.Join(d, "freezer.state")); err == nil {
				g.v1["freezer"] = d
			}
		default:
			return nil, forgeyard.Errorf("cgroup open", forgeyard.Invalid, "%s is not in a cgroup file system", d)
		}
	}
	return g, nil
}

// Dirs lists the folders, for Open.
func (g *Group) Dirs() []string { return g.dirs() }

func (g *Group) dirs() []string {
	var l []string
	for _, d := range g.v1 {
		l = append(l, d)
	}
	if g.v2 != "" {
		l = append(l, g.v2)
	}
	slices.Sort(l)
	return slices.Compact(l)
}

func (g *Group) limit(l executor.Limits) error {
	set := func(dir, file, value string) error {
		return os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644)
	}
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	var errs []error
	if d, ok := g.v1["memory"]; ok && l.Memory > 0 {
		errs = append(errs, set(d, "memory.limit_in_bytes", n(l.Memory)))
		if _, err := os.Stat(filepath.Join(d, "memory.memsw.limit_in_bytes")); err == nil {
			errs = append(errs, set(d, "memory.memsw.limit_in_bytes", n(l.Memory)))
		}
	} else if slices.Contains(g.v2Ctl, "memory") && l.Memory > 0 {
		errs = append(errs, set(g.v2, "memory.max", n(l.Memory)))
		if _, err := os.Stat(filepath.Join(g.v2, "memory.swap.max")); err == nil {
			errs = append(errs, set(g.v2, "memory.swap.max", "0"))
		}
		// A tree that ran out of memory ends as a whole: what is left of it after the kernel took
		// one process is no workload any more. An old kernel that cannot takes one at a time.
		_ = set(g.v2, "memory.oom.group", "1")
	}
	if d, ok := g.v1["pids"]; ok && l.Pids > 0 {
		errs = append(errs, set(d, "pids.max", n(l.Pids)))
	} else if slices.Contains(g.v2Ctl, "pids") && l.Pids > 0 {
		errs = append(errs, set(g.v2, "pids.max", n(l.Pids)))
	}
	quota := max(l.MilliCPU*cpuPeriod/1000, 1000) // the kernel takes no less than 1 ms
	if d, ok := g.v1["cpu"]; ok && l.MilliCPU > 0 {
		errs = append(errs, set(d, "cpu.cfs_period_us", n(cpuPeriod)), set(d, "cpu.cfs_quota_us", n(quota)))
	} else if slices.Contains(g.v2Ctl, "cpu") && l.MilliCPU > 0 {
		errs = append(errs, set(g.v2, "cpu.max", fmt.Sprintf("%d %d", quota, cpuPeriod)))
	}
	return errors.Join(errs...)
}

// Enter moves the calling thread into the version 1 groups: a child that it forks
// is born in them, with no moment outside. The caller has locked its goroutine
// to the thread, and calls Leave.
func (g *Group) Enter() error {
	for _, d := range g.v1 {
		if err := moveThread(d); err != nil {
			return errors.Join(forgeyard.E("cgroup enter", forgeyard.Unavailable, err), g.Leave())
		}
	}
	return nil
}

// Leave moves the calling thread back to where the daemon is.
func (g *Group) Leave() error {
	var errs []error
	for c := range g.v1 {
		errs = append(errs, moveThread(g.parent[c]))
	}
	return errors.Join(errs...)
}

// moveThread moves the calling thread. Its number would do as well; but for 0, which is whoever
// writes, the kernel need not hold back every fork and exit of the machine, and the wait for that
// is longer than the rest of a start.
func moveThread(dir string) error {
	return os.WriteFile(filepath.Join(dir, "tasks"), []byte("0"), 0o644)
}

// OpenV2 opens the version 2 folder, to be born in through clone3; nil without one.
func (g *Group) OpenV2() (*os.File, error) {
	if g.v2 == "" {
		return nil, nil
	}
	return os.Open(g.v2)
}

// Procs lists the processes in any of the group's folders, those of the daemon left out.
func (g *Group) Procs() ([]int, error) {
	var pids []int
	for _, d := range g.dirs() {
		b, err := os.ReadFile(filepath.Join(d, "cgroup.procs"))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue // removed
		}
		if err != nil {
			return nil, forgeyard.E("cgroup read", forgeyard.Unavailable, err)
		}
		for _, w := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(w); err == nil && pid > 1 && !daemons(pid) {
				pids = append(pids, pid)
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// daemons reports whether a process is this one, or the one that started it. While a daemon
// forks into a group of version 1, one of its threads is there (Enter), and the kernel lists
// the daemon whole: its keeper, a child, that ends the group at that moment must not end
// the daemon. A workload is the parent of neither.
func daemons(pid int) bool { return pid == os.Getpid() || pid == os.Getppid() }

// SignalAll signals every process but those to skip.
func (g *Group) SignalAll(s unix.Signal, skip func(pid int) bool) error {
	pids, err := g.Procs()
	if err != nil {
		return err
	}
	var errs []error
	for _, pid := range pids {
		if skip != nil && skip(pid) {
			continue
		}
		if err := unix.Kill(pid, s); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("process %d: %w", pid, err))
		}
	}
	return errors.Join(errs...)
}

// Kill ends everything in the group and confirms it. New processes that appear
// meanwhile are met by freezing first (version 1) or by cgroup.kill (version 2),
// and by going round until nothing is left.
func (g *Group) Kill(ctx context.Context) error {
	wait := 500 * time.Microsecond
	for round := 0; ; round++ {
		pids, err := g.Procs()
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		g.strike(pids, round)
		select {
		case <-ctx.Done():
			return forgeyard.Errorf("kill", forgeyard.Unavailable, "%d processes of %v still run after SIGKILL, the first is %d", len(pids), g.dirs(), pids[0])
		case <-time.After(wait):
		}
		wait = min(2*wait, 50*time.Millisecond)
	}
}

// strike kills once. Errors are not looked at: the caller reads the group again.
// The first rounds leave it to cgroup.kill, which cannot miss a fork and cannot
// hit a number that passed to another process; freezing has the same two virtues
// where there is no cgroup.kill.
func (g *Group) strike(pids []int, round int) {
	if g.v2 != "" && os.WriteFile(filepath.Join(g.v2, "cgroup.kill"), []byte("1"), 0o644) == nil && round < 4 {
		return
	}
	fr, frozen := g.v1["freezer"]
	if frozen {
		_ = os.WriteFile(filepath.Join(fr, "freezer.state"), []byte("FROZEN"), 0o644)
		if more, err := g.Procs(); err == nil {
			pids = more
		}
	}
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	if frozen {
		_ = os.WriteFile(filepath.Join(fr, "freezer.state"), []byte("THAWED"), 0o644)
	}
}

// OOMKills counts what the kernel killed in the group for memory.
func (g *Group) OOMKills() int {
	file := ""
	if d, ok := g.v1["memory"]; ok {
		file = filepath.Join(d, "memory.oom_control")
	} else if slices.Contains(g.v2Ctl, "memory") {
		file = filepath.Join(g.v2, "memory.events")
	}
	w := words(file)
	for i := 0; i+1 < len(w); i += 2 {
		if w[i] == "oom_kill" {
			n, err := strconv.Atoi(w[i+1])
			if err == nil {
				return n
			}
		}
	}
	return 0
}

// CPU is the processor time that all processes of the group took, those among it whose parents left
// them. Zero: not told, as by version 1.
func (g *Group) CPU() time.Duration {
	if g.v2 == "" {
		return 0
	}
	w := words(filepath.Join(g.v2, "cpu.stat"))
	for i := 0; i+1 < len(w); i += 2 {
		if w[i] == "usage_usec" {
			n, err := strconv.ParseInt(w[i+1], 10, 64)
			if err == nil {
				return time.Duration(n) * time.Microsecond
			}
		}
	}
	return 0
}

// Remove deletes the empty group. The kernel may hold it for a moment after the
// last process, so it is tried a few times.
func (g *Group) Remove() error {
	var errs []error
	for _, d := range g.dirs() {
		var err error
		for wait := time.Millisecond; wait < 500*time.Millisecond; wait *= 2 {
			err = unix.Rmdir(d)
			if !errors.Is(err, unix.EBUSY) {
				break
			}
			time.Sleep(wait)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove group %s: %w", d, err))
		}
		if len(g.v2Ctl) == 0 && filepath.Base(filepath.Dir(d)) == parentName {
			// The parent goes with its last group; it is made again when needed.
			_ = unix.Rmdir(filepath.Dir(d))
		}
	}
	return errors.Join(errs...)
}
