package users

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// busyUsers reads which users of a range have processes on this machine. Those that end
// meanwhile are left out, and so are those that are dead and wait for their parent: they have
// no memory and no files. A process has four users, of which the owner of its folder in /proc
// is one: its status is asked.
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
	busy, at, buf := map[int]bool{}, int(d.Fd()), make([]byte, 4<<10)
	for _, n := range names {
		if n[0] < '0' || n[0] > '9' {
			continue
		}
		for _, id := range statusUsers(readAt(at, n+"/status", buf)) {
			if id >= first && id < first+count {
				busy[id] = true
			}
		}
	}
	return busy, nil
}

// freeShared removes what a user has in shared memory: files, and segments that it made. Without
// the rights for it, or without such memory, there is nothing to be done.
func freeShared(uid int) {
	freeFiles(uid)
	b, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		return
	}
	const idAt, makerAt = 1, 9 // an owner can be changed by the owner, the maker by nobody
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) <= makerAt || f[makerAt] != strconv.Itoa(uid) {
			continue
		}
		if id, err := strconv.Atoi(f[idAt]); err == nil {
			_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		}
	}
}

// freeFiles removes a user's files of the folder in which every account makes its shared memory.
// Nobody else renames anything there: it is sticky.
func freeFiles(uid int) {
	shm, err := os.OpenRoot("/dev/shm")
	if err != nil {
		return
	}
	defer shm.Close()
	l, err := fs.ReadDir(shm.FS(), ".")
	if err != nil {
		return
	}
	for _, e := range l {
		st, err := shm.Lstat(e.Name())
		if err != nil {
			continue
		}
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) == uid {
			_ = shm.RemoveAll(e.Name())
		}
	}
}

// readAt reads the beginning of a file of /proc: there is one of each process, for each job.
// What cannot be read has ended.
func readAt(dir int, name string, buf []byte) []byte {
	for {
		fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil
		}
		n, err := unix.Read(fd, buf)
		_ = unix.Close(fd) // it was only read
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return buf[:max(n, 0)]
	}
}

// statusUsers are the real, effective, saved and file system user of a process that is not dead.
func statusUsers(status []byte) (ids []int) {
	for line := range bytes.Lines(status) {
		if state, ok := bytes.CutPrefix(line, []byte("State:")); ok && bytes.ContainsAny(state[:min(len(state), 2)], "ZX") {
			return nil
		}
		v, ok := bytes.CutPrefix(line, []byte("Uid:"))
		if !ok {
			continue
		}
		for _, w := range bytes.Fields(v) {
			if id, err := strconv.Atoi(string(w)); err == nil {
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
