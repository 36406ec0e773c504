//go:build linux

package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The test's program is also the attacker: inside the sandbox it is what the workload runs.
const (
	envAttack = "FORGEYARD_TEST_ATTACK" // the folder to change
	envPlain  = "FORGEYARD_TEST_PLAIN"  // only with the attacks that harm nobody but that folder
)

func TestMain(m *testing.M) {
	if name := os.Getenv(envEscape); name != "" {
		tryEscape(name)
		return
	}
	dir := os.Getenv(envAttack)
	if dir == "" {
		if err := ownNet(); err != nil {
			fmt.Println("no network of its own:", err)
		}
		os.Exit(m.Run())
	}
	for _, x := range attacks {
		if os.Getenv(envPlain) != "" && !x.plain {
			continue
		}
		err := x.try(dir)
		if err == nil {
			fmt.Printf("WROTE by %s\n", x.name)
		}
		fmt.Printf("tried %s: %v\n", x.name, err)
	}
}

// attack tries to change something below dir, or to reach what could; nil says that it did.
type attack struct {
	name  string
	plain bool // works where dir may be written
	try   func(dir string) error
}

var attacks = []attack{
	{"write", true, func(d string) error { return poke(filepath.Join(d, "small")) }},
	{"truncate", true, func(d string) error { return os.Truncate(filepath.Join(d, "small"), 3) }},
	{"append", true, func(d string) error { return openFor(filepath.Join(d, "small"), unix.O_WRONLY|unix.O_APPEND) }},
	{"chmod", true, func(d string) error { return os.Chmod(filepath.Join(d, "small"), 0o777) }},
	{"chmod folder", true, func(d string) error { return os.Chmod(d, 0o777) }},
	{"chown", true, func(d string) error { return os.Chown(filepath.Join(d, "small"), os.Getuid(), os.Getgid()) }},
	{"times", true, func(d string) error { return unix.Utimes(filepath.Join(d, "small"), make([]unix.Timeval, 2)) }},
	{"create", true, func(d string) error { return openFor(filepath.Join(d, "new"), unix.O_WRONLY|unix.O_CREAT) }},
	{"nameless file", false, func(d string) error { return openFor(d, unix.O_WRONLY|unix.O_TMPFILE) }},
	{"mkdir", true, func(d string) error { return os.Mkdir(filepath.Join(d, "dir"), 0o777) }},
	{"symlink in it", true, func(d string) error { return os.Symlink("/etc/passwd", filepath.Join(d, "l")) }},
	{"rename", true, func(d string) error { return os.Rename(filepath.Join(d, "sub"), filepath.Join(d, "sub2")) }},
	{"attribute", false, func(d string) error { return unix.Setxattr(filepath.Join(d, "small"), "user.x", []byte("x"), 0) }},
	{"hard link out of it", false, hardLink},
	{"through a link", true, func(d string) error {
		defer os.Remove("way")
		_ = os.Symlink(filepath.Join(d, "sub", "..", "small"), "way")
		return poke("way")
	}},
	{"through /proc/self/fd", true, throughFD},
	{"through /proc roots", true, func(d string) error {
		return anyOf(
			func() error { return poke("/proc/1/root" + d + "/small") },
			func() error { return poke("/proc/self/root" + d + "/small") },
			func() error { return poke("/proc/self/cwd/../.." + d + "/small") },
		)
	}},
	{"mmap", false, mapped},
	{"mprotect", false, protected},
	{"punch a hole", false, onRead(func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4)
	})},
	{"clone over it", false, onRead(func(fd int) error {
		src, err := os.Create("src")
		if err != nil {
			return err
		}
		defer src.Close()
		return unix.IoctlFileClone(fd, int(src.Fd()))
	})},
	{"flags", false, onRead(func(fd int) error { return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, unix.STATX_ATTR_NODUMP) })},
	{"by handle", false, byHandle},
	{"remount", false, func(d string) error {
		_ = unix.Mount("", d, "", unix.MS_REMOUNT|unix.MS_BIND, "")
		_ = unix.Mount("", d, "", unix.MS_REMOUNT, "")
		_ = unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "")
		return poke(filepath.Join(d, "small"))
	}},
	{"mount attributes", false, func(d string) error {
		_ = unix.MountSetattr(unix.AT_FDCWD, d, unix.AT_RECURSIVE, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
		return poke(filepath.Join(d, "small"))
	}},
	{"another mount of it", false, func(d string) error {
		_ = os.Mkdir("m", 0o777)
		if fd, err := unix.OpenTree(unix.AT_FDCWD, d, unix.OPEN_TREE_CLONE|unix.AT_RECURSIVE); err == nil {
			_ = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
			_ = unix.MoveMount(fd, "", unix.AT_FDCWD, "m", unix.MOVE_MOUNT_F_EMPTY_PATH)
		}
		_ = unix.Mount(d, "m", "", unix.MS_BIND, "")
		return poke("m/small")
	}},
	{"take the mount away", false, func(d string) error {
		if err := unix.Unmount(d, unix.MNT_DETACH); err != nil {
			return err
		}
		return nil // what is below it is this workspace's, but no workload may unmount
	}},
	{"a namespace of its own", false, func(d string) error {
		if err := unix.Unshare(unix.CLONE_NEWUSER | unix.CLONE_NEWNS); err != nil {
			return err
		}
		_ = unix.Mount("", d, "", unix.MS_REMOUNT|unix.MS_BIND, "")
		_ = unix.Unmount(d, unix.MNT_DETACH)
		return poke(filepath.Join(d, "small"))
	}},
	{"another's namespace", false, func(string) error {
		return anyOf(func() error { return joins("/proc/1/ns/mnt") }, func() error { return joins("/proc/1/ns/user") })
	}},
	{"trace who bound it", false, func(string) error { return eachOther(traced) }},
	{"write its memory", false, func(string) error {
		return eachOther(func(pid int) error {
			return errors.Join(openFor("/proc/"+strconv.Itoa(pid)+"/mem", unix.O_RDWR), stronger(pid))
		})
	}},
	{"take its descriptors", false, func(string) error { return eachOther(stolen) }},
	{"remove", true, func(d string) error { return os.Remove(filepath.Join(d, "small")) }},
}

func openFor(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o666)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

// poke changes the first byte of a file.
func poke(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte("X"), 0)
	return errors.Join(err, f.Close())
}

// anyOf is nil when one of the ways works.
func anyOf(ways ...func() error) error {
	var errs []error
	for _, w := range ways {
		err := w()
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("%v", errs)
}

// hardLink brings the file to where this workload may write.
func hardLink(d string) error {
	defer os.Remove("linked")
	if err := os.Link(filepath.Join(d, "small"), "linked"); err != nil {
		return err
	}
	return poke("linked")
}

func onRead(f func(fd int) error) func(string) error {
	return func(d string) error {
		fd, err := unix.Open(filepath.Join(d, "small"), unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return f(fd)
	}
}

// throughFD opens for writing what is open for reading.
func throughFD(d string) error {
	return onRead(func(fd int) error { return poke("/proc/self/fd/" + strconv.Itoa(fd)) })(d)
}

func mapped(d string) error {
	return onRead(func(fd int) error {
		b, err := unix.Mmap(fd, 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		b[0] = 'X'
		return unix.Munmap(b)
	})(d)
}

func protected(d string) error {
	return onRead(func(fd int) error {
		b, err := unix.Mmap(fd, 0, 4, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		if err := unix.Mprotect(b, unix.PROT_READ|unix.PROT_WRITE); err != nil {
			return err
		}
		b[0] = 'X'
		return unix.Munmap(b)
	})(d)
}

// byHandle goes round every mount's rights.
func byHandle(d string) error {
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, filepath.Join(d, "small"), 0)
	if err != nil {
		return err
	}
	return anyOf(func() error { return handled(d, h) }, func() error { return handled("/tmp", h) }, func() error { return handled(".", h) })
}

func handled(mount string, h unix.FileHandle) error {
	m, err := unix.Open(mount, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(m)
	fd, err := unix.OpenByHandleAt(m, h, unix.O_RDWR)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func joins(ns string) error {
	fd, err := unix.Open(ns, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Setns(fd, 0)
}

// eachOther does something to every process that is seen, but to this one and its parent,
// which is the workload's own shell.
func eachOther(f func(pid int) error) error {
	l, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	var ways []func() error
	for _, p := range l {
		pid, err := strconv.Atoi(filepath.Base(p))
		if err == nil && pid != os.Getpid() && pid != os.Getppid() {
			ways = append(ways, func() error { return f(pid) })
		}
	}
	if len(ways) == 0 {
		return errors.New("there is no other process")
	}
	return anyOf(ways...)
}

// stronger is nil when a process may do more than this one: whoever traces it may too.
func stronger(pid int) error {
	mine, theirs := rights("self"), rights(strconv.Itoa(pid))
	if mine != theirs {
		fmt.Printf("%d has %q, this has %q\n", pid, theirs, mine)
		return nil
	}
	return fmt.Errorf("%d may do what this one may", pid)
}

// rights tells what a process may do: its ids, capabilities, and what it sees.
func rights(pid string) (out string) {
	b, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return err.Error()
	}
	for line := range strings.Lines(string(b)) {
		if word, _, _ := strings.Cut(line, ":"); strings.HasPrefix(word, "Cap") || word == "Uid" || word == "Gid" || word == "NoNewPrivs" {
			out += line
		}
	}
	for _, ns := range []string{"mnt", "user", "pid"} {
		l, err := os.Readlink("/proc/" + pid + "/ns/" + ns)
		out += fmt.Sprintln(l, err)
	}
	return out
}

// traced stops a process, and lets it go on.
func traced(pid int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := syscall.PtraceAttach(pid); err != nil {
		return fmt.Errorf("%d: %w", pid, err)
	}
	var ws syscall.WaitStatus
	_, werr := syscall.Wait4(pid, &ws, syscall.WALL, nil)
	if err := errors.Join(werr, syscall.PtraceDetach(pid)); err != nil {
		return err
	}
	return stronger(pid)
}

// stolen takes every descriptor of a process; a pipe leads nowhere, a folder would.
func stolen(pid int) error {
	p, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(p)
	var errs []error
	for fd := range 256 {
		got, err := unix.PidfdGetfd(p, fd, 0)
		if err == nil {
			err = leads(got)
			_ = unix.Close(got)
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBADF) {
			errs = append(errs, err)
		}
	}
	return fmt.Errorf("%d: %v", pid, errs)
}

// leads is nil when a descriptor is a way to some file.
func leads(fd int) error {
	l, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if k := st.Mode & unix.S_IFMT; k == unix.S_IFDIR || k == unix.S_IFREG || k == unix.S_IFBLK {
		fmt.Println("a way to", l)
		return nil
	}
	return fmt.Errorf("only %s", l)
}
