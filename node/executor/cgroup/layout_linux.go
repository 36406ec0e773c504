package cgroup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node"
)

// used lists the version 1 controllers that we make groups in. cpuset and devices
// need values before a process may enter, and bound nothing that a spec asks.
var used = []string{"memory", "pids", "cpu", "freezer"}

// parentName names the group that holds ours.
const parentName = "forgeyard"

// Hierarchy is what this machine has for us. It is immutable.
type Hierarchy struct {
	v1      map[string]string // controller → the folder of our parent group
	v2      string            // our parent group in the version 2 tree; empty without one
	v2Ctl   []string          // controllers that version 2 gives to our groups
	v2Kill  bool
	v2IO    bool     // the parent takes a weight for disks
	reasons []string // why a limit does not hold
}

// Options say where to look; the zero value is this machine.
type Options struct {
	MountInfo string // default /proc/self/mountinfo
	Own       string // default /proc/self/cgroup
}

// Detect finds the layout and makes the parent groups. Unavailable means that
// there is nothing to use here, or that we may not write to it.
func Detect(o Options) (*Hierarchy, error) {
	if o.MountInfo == "" {
		o.MountInfo = "/proc/self/mountinfo"
	}
	if o.Own == "" {
		o.Own = "/proc/self/cgroup"
	}
	mi, err := os.ReadFile(o.MountInfo)
	if err != nil {
		return nil, forgeyard.E("cgroups", forgeyard.Unavailable, err)
	}
	own, err := os.ReadFile(o.Own)
	if err != nil {
		return nil, forgeyard.E("cgroups", forgeyard.Unavailable, err)
	}
	h := &Hierarchy{v1: map[string]string{}}
	v1, v2 := locate(mi, own)
	for _, c := range used {
		dir, ok := v1[c]
		if !ok {
			continue
		}
		parent := filepath.Join(dir, parentName)
		if err := mkdir(parent); err != nil {
			h.reasons = append(h.reasons, err.Error())
			continue
		}
		h.v1[c] = parent
	}
	if v2 != "" {
		h.useV2(v2, parentName)
	}
	if len(h.v1) == 0 && h.v2 == "" {
		return nil, forgeyard.Errorf("cgroups", forgeyard.Unavailable, "no control group can be made here: %s", strings.Join(h.reasons, "; ")).
			WithHint("run as root, or let systemd delegate a group: Delegate=yes")
	}
	return h, nil
}

// locate reads where each controller is mounted and which folder of it is ours.
func locate(mountinfo, own []byte) (v1 map[string]string, v2 string) {
	v1 = map[string]string{}
	ownV1, ownV2 := parseOwn(own)
	sc := bufio.NewScanner(bytes.NewReader(mountinfo))
	for sc.Scan() {
		left, right, ok := strings.Cut(sc.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			continue
		}
		root, mount := unescape(l[3]), unescape(l[4])
		switch r[0] {
		case "cgroup2":
			v2 = below(mount, root, ownV2)
		case "cgroup":
			for _, c := range strings.Split(r[2], ",") {
				if p, ok := ownV1[c]; ok && slices.Contains(used, c) {
					v1[c] = below(mount, root, p)
				}
			}
		}
	}
	return v1, v2
}

// below is the folder of group p where only the part of the tree under root is
// mounted, as inside containers.
func below(mount, root, p string) string {
	if rel, ok := strings.CutPrefix(p, root); ok && root != "/" {
		return filepath.Join(mount, rel)
	}
	if root != "/" {
		return mount
	}
	return filepath.Join(mount, p)
}

func parseOwn(b []byte) (v1 map[string]string, v2 string) {
	v1 = map[string]string{}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		if f[0] == "0" && f[1] == "" {
			v2 = f[2]
			continue
		}
		for _, c := range strings.Split(f[1], ",") {
			v1[c] = f[2]
		}
	}
	return v1, v2
}

// unescape undoes mountinfo's octal escapes.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// useV2 makes the parent in the version 2 tree and passes controllers down. A
// group with processes of its own cannot pass controllers down, so when the
// daemon is alone in its group it first moves itself into a leaf.
func (h *Hierarchy) useV2(own, name string) {
	parent := filepath.Join(own, name)
	if err := mkdir(parent); err != nil {
		h.reasons = append(h.reasons, err.Error())
		return
	}
	h.v2 = parent
	if _, err := os.Stat(filepath.Join(parent, "cgroup.kill")); err == nil {
		h.v2Kill = true
	}
	want := intersect(words(filepath.Join(own, "cgroup.controllers")), []string{"memory", "pids", "cpu"})
	if len(want) == 0 {
		return
	}
	err := enable(own, want)
	if errors.Is(err, unix.EBUSY) {
		if err = moveSelf(own, filepath.Join(own, name+"-daemon")); err == nil {
			err = enable(own, want)
		}
	}
	if err == nil {
		err = enable(parent, want)
	}
	if err != nil {
		h.reasons = append(h.reasons, fmt.Sprintf("controllers %v: %v", want, err))
		return
	}
	h.v2Ctl = want
	// A weight needs the controller in the parent alone, and nothing fails for want of it.
	h.v2IO = len(intersect(words(filepath.Join(own, "cgroup.controllers")), []string{"io"})) == 1 && enable(own, []string{"io"}) == nil
}

func enable(dir string, ctl []string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+strings.Join(ctl, " +")), 0o644)
}

func moveSelf(from, leaf string) error {
	for _, p := range words(filepath.Join(from, "cgroup.procs")) {
		if p != strconv.Itoa(os.Getpid()) {
			return fmt.Errorf("group %s also holds process %s, so it cannot pass limits down", from, p)
		}
	}
	if err := mkdir(leaf); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o644)
}

// Enforces lists the limits that hold: of cpu, memory, pids.
func (h *Hierarchy) Enforces() []string {
	var l []string
	for _, c := range []string{"cpu", "memory", "pids"} {
		if _, ok := h.v1[c]; ok || slices.Contains(h.v2Ctl, c) {
			l = append(l, c)
		}
	}
	return l
}

// Describe is the layout in a word, and why a limit is missing.
func (h *Hierarchy) Describe() string {
	s := "v1"
	switch {
	case len(h.v1) > 0 && h.v2 != "":
		s = "hybrid"
	case h.v2 != "":
		s = "v2"
	}
	if len(h.reasons) > 0 {
		s += ": " + strings.Join(h.reasons, "; ")
	}
	return s
}

// mkdir makes a parent group, or takes one that is there if we may make groups in it:
// another user's daemon may have made it.
func mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return &os.PathError{Op: "write", Path: dir, Err: err}
	}
	return nil
}

func words(file string) []string {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return strings.Fields(string(b))
}

func intersect(a, b []string) []string {
	var out []string
	for _, x := range b {
		if slices.Contains(a, x) {
			out = append(out, x)
		}
	}
	return out
}
