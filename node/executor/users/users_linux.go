package users

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// busyUsers reads which users of a range have processes on this machine. Those that end
// meanwhile are left out, and so are those that are dead and wait for their parent: they have
// no memory and no files. A process that may not be dumped belongs to root in /proc, so its
// status is asked.
func busyUsers(first, count int) (map[int]bool, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	busy := map[int]bool{}
	for _, n := range names {
		if n[0] < '0' || n[0] > '9' {
			continue
		}
		var st syscall.Stat_t
		if syscall.Lstat("/proc/"+n, &st) != nil {
			continue
		}
		if id := int(st.Uid); id != 0 && (id < first || id >= first+count) {
			continue
		}
		for _, uid := range statusUsers(n) {
			busy[uid] = true
		}
	}
	return busy, nil
}

// statusUsers are the real, effective, saved and file system user of a process that is not dead.
func statusUsers(pid string) (ids []int) {
	b, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		if state, ok := strings.CutPrefix(line, "State:"); ok && strings.ContainsAny(state[:min(len(state), 2)], "ZX") {
			return nil
		}
		v, ok := strings.CutPrefix(line, "Uid:")
		if !ok {
			continue
		}
		for _, w := range strings.Fields(v) {
			if id, err := strconv.Atoi(w); err == nil {
				ids = append(ids, id)
			}
		}
		break
	}
	return ids
}

// mappedUsers says which ranges of numbers this user namespace has. Where it cannot be read
// all are taken to be there: a change of owner to one that is not fails by itself.
func mappedUsers() func(first, count int) bool {
	u, err := os.ReadFile("/proc/self/uid_map")
	g, gerr := os.ReadFile("/proc/self/gid_map")
	if err != nil || gerr != nil {
		return func(int, int) bool { return true }
	}
	return func(first, count int) bool { return covers(u, first, count) && covers(g, first, count) }
}

// covers reports whether one line of an id map has the whole range.
func covers(idMap []byte, first, count int) bool {
	for s := bufio.NewScanner(bytes.NewReader(idMap)); s.Scan(); {
		var inside, outside, length int64
		if _, err := fmt.Sscan(s.Text(), &inside, &outside, &length); err == nil &&
			int64(first) >= inside && int64(first)+int64(count) <= inside+length {
			return true
		}
	}
	return false
}
