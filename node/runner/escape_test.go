//go:build linux

package runner

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/users"
)

// envEscape makes the test's program one attempt to escape; see TestMain.
const envEscape = "FORGEYARD_TEST_ESCAPE"

// escape is one attempt to get out of a job, to harm others from it, or to use up the machine.
// Its script prints ESCAPED if it got what it was after.
type escape struct {
	name   string
	script string                // what the job runs; empty: call
	call   func() error          // in the test's own program, run by the job; nil says that it got through
	strict bool                  // only the sandbox promises this (decision 9)
	change func(*job.Spec)       // of the job
	ends   job.FailureCategory   // how it ends where it is not to pass
	any    bool                  // nobody can say how it ends
	during func(*yard, *Attempt) // what this machine does once the script said that it waits
}

func got(script string) string { return "set +e\n(" + script + ") && echo ESCAPED\necho tried" }

// escapes is the list of issue and document: what a job that nobody has read may try. RA-220,
// RA-364–369, RA-371–374, RA-377, RA-453, RA-454, RA-268; together: RA-031, RA-496,
// RA-536, RA-543.
var escapes = []escape{
	// What is the node's.
	{name: "read the node's key RA-365 RA-453", script: got(`cat "$KEY" || cat "/proc/1/root$KEY" || cat "/proc/$AGENT/root$KEY" || cat "/proc/$AGENT/cwd/../..$KEY"`)},
	{name: "read the enrolment RA-364 RA-366", script: got(`cat "$(dirname "$KEY")/enrolment" || cp -r "$(dirname "$KEY")" stolen`)},
	{name: "list the node's folders RA-369", script: got(`ls "$DATA" || ls "$(dirname "$KEY")" || ls "$(dirname "$LOOT")/../.."`)},
	{name: "link the key into the workspace", script: got(`ln "$KEY" k && cat k`)},
	{name: "talk to the control socket RA-370", call: func() error { return dial("unix", os.Getenv("SOCK")) }},
	{name: "talk to a nameless socket of the host", strict: true, call: func() error { return dial("unix", "@"+os.Getenv("ABSTRACT")) }},
	{name: "find sockets of docker, ssh and dbus RA-371 RA-372 RA-373", strict: true, script: got(`ls /run/docker.sock /var/run/docker.sock /run/dbus /run/user /var/run/dbus 2>/dev/null | grep . || [ -n "$SSH_AUTH_SOCK$DOCKER_HOST$DBUS_SESSION_BUS_ADDRESS" ]`)},
	{name: "read the node's environment", script: got(`tr '\0' '\n' < /proc/$AGENT/environ | grep .`)},
	{name: "list the node's descriptors", script: got(`ls /proc/$AGENT/fd | grep .`)},
	{name: "read the node's memory", call: func() error { return openFor(fmt.Sprintf("/proc/%d/mem", agent()), unix.O_RDONLY) }},
	{name: "copy the node's memory", call: func() error {
		b := make([]byte, 8)
		_, err := unix.ProcessVMReadv(agent(), []unix.Iovec{{Base: &b[0], Len: 8}}, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
		return err
	}},
	{name: "trace the node", call: func() error { return traces(agent()) }},
	{name: "trace the neighbour", call: func() error { return traces(victim()) }},
	{name: "read the neighbour's memory", call: func() error { return openFor(fmt.Sprintf("/proc/%d/mem", victim()), unix.O_RDONLY) }},
	{name: "take a descriptor of the node", call: func() error { return stolen(agent()) }},
	{name: "signal the node", script: got(`kill -0 $AGENT || kill -WINCH $AGENT`)},
	{name: "signal everybody", script: "trap '' USR1\n" + got(`kill -USR1 -1; false`)}, // the victim says if it was hit
	{name: "stop the neighbour", script: got(`kill -STOP $VICTIM || kill -KILL $VICTIM`)},
	// What is another job's.
	{name: "read another workspace RA-367 RA-454", script: got(`cat "$LOOT" || cat "/proc/$VICTIM/root/work/build/loot" || cat "/proc/$VICTIM/cwd/loot"`)},
	{name: "write into another workspace", script: got(`echo x >> "$LOOT" || touch "$(dirname "$LOOT")/x"`)},
	{name: "read another job's environment", script: got(`tr '\0' '\n' < /proc/$VICTIM/environ | grep JEWELS`)},
	{name: "see other jobs in /proc", strict: true, script: got(`[ -d /proc/$VICTIM ] || [ "$(ls -d /proc/[0-9]* | wc -l)" -gt 8 ]`)},
	{name: "look through /proc/1/root", script: got(`ls /proc/1/root/root /proc/1/root/var || ls /proc/1/root/../home`)},
	{name: "find shared memory of others", strict: true, script: got(`ls /dev/shm | grep .`)},
	{name: "find shared segments of others", strict: true, script: got(`ipcs -m | grep 0x`)},
	// What is the host's.
	{name: "read the shadow file RA-368", script: got(`cat /etc/shadow || cat /etc/gshadow`)},
	{name: "read the host's accounts", strict: true, script: got(`grep -v '^root:\|^job:\|^nobody:' /etc/passwd`)},
	{name: "change the toolchain", script: got(`echo x >> /usr/bin/env || touch /usr/lib/x || echo x >> /etc/passwd`)},
	{name: "change the sources", script: got(`touch "$FORGEYARD_SOURCE_DIR/x" || chmod 777 "$FORGEYARD_SOURCE_DIR"`)},
	{name: "replace the runner's files", script: got(`mv "$FORGEYARD_SOURCE_DIR/../ctl/inbox" "$FORGEYARD_SOURCE_DIR/../ctl/x" || touch "$FORGEYARD_SOURCE_DIR/../bin/x" || touch "$FORGEYARD_SOURCE_DIR/../restore/x"`)},
	{name: "open disks and memory", script: got(`for d in /dev/mem /dev/kmem /dev/kmsg /dev/port /dev/vda /dev/sda /dev/nvme0n1 /dev/loop0 /dev/loop-control /dev/fuse /dev/kvm; do head -c1 $d && exit 0; done; false`), strict: true},
	{name: "make a device", script: got(`mknod c c 1 5 && head -c1 c || mknod d b 8 0`)},
	{name: "set-uid program of its own RA-374", script: got(`cp /bin/sh s && chmod 6755 s && ./s -c '[ "$(id -u)" = 0 ]'`)},
	{name: "set-uid program of root's RA-374", script: `u=$("$SETUID" -u); [ "$u" != 0 ] || echo ESCAPED; echo tried`},
	{name: "set-uid programs of the host", script: got(`su -c true </dev/null || sudo -n true || pkexec true || mount /dev/null x`)},
	{name: "capabilities", script: got(`grep -q '^CapEff:.*[1-9a-f]' /proc/self/status || grep -q '^CapBnd:.*[1-9a-f]' /proc/self/status && [ -d /work/source ]`)},
	{name: "kernel settings", script: got(`echo /tmp/x > /proc/sys/kernel/core_pattern || echo 0 > /proc/sys/kernel/randomize_va_space || echo b > /proc/sysrq-trigger`)},
	{name: "leave its control group", script: got(`for g in /sys/fs/cgroup/* /sys/fs/cgroup/unified; do [ -d $g ] && { echo $$ > $g/cgroup.procs || mkdir $g/mine; } 2>/dev/null && exit 0; done; false`)},
	{name: "change root", script: got(`mkdir -p r && chroot r true || chroot / true`)},
	{name: "rise in priority", script: got(`nice -n -20 true 2>&1 | grep -q . && false || [ "$(nice)" -lt 0 ]`)},
	{name: "leave a core", script: got(`ulimit -c unlimited; sh -c 'kill -SEGV $$'; ls core* || [ "$(ulimit -c)" != 0 ]`)},
	// The network.
	{name: "raw socket", call: func() error { return socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) }},
	{name: "packet socket", call: func() error { return socket(unix.AF_PACKET, unix.SOCK_RAW, 0x300) }},
	{name: "socket of the kernel's ciphers", call: func() error { return socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0) }},
	{name: "socket to the host of this machine", call: func() error { return socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0) }},
	{name: "netlink of the firewall", call: func() error { return socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER) }},
	{name: "cloud metadata address", call: func() error { return dial("tcp", os.Getenv("METADATA")) }},
	{name: "the host's loopback", call: func() error { return dial("tcp", os.Getenv("TCP")) }},
	{name: "the world", call: func() error { return dial("udp-answer", world+":53") }},
	// The kernel.
	{name: "mount", script: got(`mount -t tmpfs x /tmp || mount --bind / "$FORGEYARD_BUILD_DIR" || umount /work/source || mount -o remount,rw /`)},
	{name: "mount by the new calls", call: func() error { return raw(unix.SYS_FSOPEN, ptr("tmpfs"), 0) }},
	{name: "copy a mount", call: func() error {
		_, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE)
		return err
	}},
	{name: "pivot root", call: func() error { return unix.PivotRoot("/", "/") }},
	{name: "user namespace", script: got(`unshare -Ur true || unshare -m true || unshare -n true`)},
	{name: "user namespace by clone", call: func() error {
		return raw(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0)
	}},
	{name: "join the first process", call: func() error {
		return anyOf(func() error { return joins("/proc/1/ns/mnt") }, func() error { return joins("/proc/1/ns/net") }, func() error { return joins(fmt.Sprintf("/proc/%d/ns/mnt", agent())) })
	}},
	{name: "load a program into the kernel", call: func() error { return raw(unix.SYS_BPF, 0, 0) }},
	{name: "count the kernel's events", call: func() error {
		_, err := unix.PerfEventOpen(&unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: unix.PERF_ATTR_SIZE_VER0}, 0, -1, -1, 0)
		return err
	}},
	{name: "requests by ring", call: func() error { return refused(unix.ENOSYS, raw(unix.SYS_IO_URING_SETUP, 1, 0)) }},
	{name: "page faults of its own", call: func() error { return raw(unix.SYS_USERFAULTFD, 0) }},
	{name: "keys", call: func() error { _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_USER_KEYRING, true); return err }},
	{name: "modules and another kernel", call: func() error {
		return anyOf(func() error { return raw(unix.SYS_INIT_MODULE, 0, 0) }, func() error { return raw(unix.SYS_KEXEC_LOAD, 0, 0) }, func() error { return unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) })
	}},
	{name: "file by handle", call: func() error { return byHandle(".") }},
	{name: "type for the terminal", call: func() error { return refused(unix.EPERM, unix.IoctlSetPointerInt(0, unix.TIOCSTI, 'x')) }},
	{name: "another architecture's call", call: func() error { return raw(0x4000_0000+unix.SYS_GETPID, 0) }, ends: job.WorkloadFailed},
	// What comes out of it.
	{name: "output that is a link to the host", script: `ln -s /etc/shadow out`, change: gives("out"), ends: job.OutputInvalid},
	{name: "output below a link", script: `ln -s /etc dir`, change: gives("dir/passwd"), ends: job.OutputInvalid},
	{name: "output with a link out of it", script: `mkdir out; ln -s ../../../../../../etc/shadow out/l`, change: gives("out"), ends: job.OutputInvalid},
	{name: "output that is a pipe", script: `mkfifo out`, change: gives("out"), ends: job.OutputInvalid},
	{name: "output that is a hard link it makes", script: `set +e; ln "$KEY" out; ln /etc/shadow out; ln "$PROGRAM" out; echo tried`, change: gives("out"), ends: job.OutputInvalid},
	{name: "output that is a hard link to a key", script: waits, during: linked("out"), change: gives("out"), ends: job.OutputInvalid},
	{name: "output with a hard link to a key", script: `mkdir out; ` + waits, during: linked("out/k"), change: gives("out"), ends: job.OutputInvalid},
	// What uses the machine up.
	{name: "fork bomb", script: `f() { f | f & }; (f) 2>/dev/null & echo waits; exec sleep 1000`, change: small, any: true, during: hitsPids},
	{name: "memory bomb", script: `head -c 900m /dev/zero | tail -c 800m >/dev/null`, change: small, ends: job.OutOfMemory},
	{name: "memory bomb in a folder", script: `head -c 900m /dev/zero > "/dev/shm/$BOMB" && echo ESCAPED`, change: small, ends: job.OutOfMemory},
	{name: "disk bomb RA-132", script: `head -c 100m /dev/zero > big; exec sleep 1000`, change: narrow, ends: job.DiskFull},
	{name: "disk bomb without a name", script: `exec 3>big; rm big; head -c 100m /dev/zero >&3; exec sleep 1000`, change: narrow, ends: job.DiskFull},
	{name: "bomb of folders", script: `p=$(printf 'x/%.0s' $(seq 600)); mkdir -p $p; exec sleep 1000`, change: narrow, ends: job.DiskFull},
	{name: "inode bomb", script: `seq 70000 | xargs touch`, change: narrow, ends: job.DiskFull},
	{name: "log bomb", script: `head -c 30m /dev/zero; echo tried`, change: narrow, any: true},
	{name: "daemon that leaves its group RA-218", script: `(setsid sh -c 'setsid sleep 1000 </dev/null >/dev/null 2>&1 &' &) ; sleep 0.2; echo tried`},
	{name: "tree that cannot be removed", script: `p=$(printf 'xxxxxxxxxxxxxxxx/%.0s' $(seq 200)); mkdir -p $p; : > $p/f; chmod 000 $p; chmod 500 xxxxxxxxxxxxxxxx; chmod 000 "$FORGEYARD_BUILD_DIR"; echo tried`},
}

// waits ends when the machine did its part.
const waits = `echo waits; until [ -e go ]; do sleep 0.01; done`

// linked puts a hard link to the node's key into the build folder, as a job can by itself on
// a machine that lets everybody link everything (fs.protected_hardlinks).
func linked(name string) func(*yard, *Attempt) {
	return func(y *yard, a *Attempt) {
		build := filepath.Join(a.root, executor.BuildDir)
		if err := errors.Join(os.Link(y.env["KEY"], filepath.Join(build, name)), os.WriteFile(filepath.Join(build, "go"), nil, 0o644)); err != nil {
			y.t.Error(err)
			a.Cancel("nothing was linked", true)
		}
	}
}

func gives(path string) func(*job.Spec) {
	return func(s *job.Spec) { s.Outputs = []job.OutputDecl{{Path: path}} }
}

func small(s *job.Spec) { s.Resources.Memory, s.Resources.Pids = 64<<20, 32 }

func narrow(s *job.Spec) { s.Resources.Disk = 20 << 20 }

func agent() int { return number("AGENT") }

func victim() int { return number("VICTIM") }

func number(env string) int { n, _ := strconv.Atoi(os.Getenv(env)); return n }

// traces asks for the right that every kind of tracing needs, and stops nobody.
func traces(pid int) error {
	runtime.LockOSThread()
	return unix.PtraceSeize(pid)
}

// hitsPids waits until the kernel refused the job a process for its bound, and ends it.
func hitsPids(y *yard, a *Attempt) {
	defer a.Cancel("the bomb went off", true)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for _, d := range a.exec.Named(a.id).Cgroups {
			b, err := os.ReadFile(filepath.Join(d, "pids.events"))
			if n, ok := strings.CutPrefix(strings.TrimSpace(string(b)), "max "); err == nil && ok && n != "0" {
				return
			}
		}
	}
	y.t.Errorf("no process was refused: %v", a.exec.Named(a.id).Cgroups)
}

// raw makes a call as it is, past every library. The kernel checks arguments after the filter:
// an error that is not the filter's says that the kernel was reached.
func raw(nr uintptr, args ...uintptr) error {
	a := append(args, 0, 0, 0, 0, 0, 0)
	_, _, errno := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	return refused(0, errno)
}

// refused is an error when a call was refused, as want where that is given: what the kernel says
// about arguments means that the call got to it.
func refused(want unix.Errno, err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) || errno == 0 {
		return nil
	}
	if want != 0 && errno == want || want == 0 && (errno == unix.EPERM || errno == unix.ENOSYS || errno == unix.EAFNOSUPPORT) {
		return errno
	}
	fmt.Println("the kernel says", errno)
	return nil
}

func ptr(s string) uintptr { b := append([]byte(s), 0); return uintptr(unsafe.Pointer(&b[0])) }

func socket(family, kind, protocol int) error {
	fd, err := unix.Socket(family, kind, protocol)
	if err == nil {
		_ = unix.Close(fd)
	}
	return refused(0, err)
}

// dial is nil when somebody answers.
func dial(network, addr string) error {
	network, ask := strings.CutSuffix(network, "-answer")
	c, err := net.DialTimeout(network, addr, 2*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if ask {
		_, err = c.Write([]byte("hello"))
	}
	return err
}

// tryEscape is the program of an attempt.
func tryEscape(name string) {
	for _, x := range escapes {
		if x.name != name {
			continue
		}
		err := x.call()
		if err == nil {
			fmt.Println("ESCAPED")
		}
		fmt.Println("tried:", err)
		return
	}
	fmt.Println("no such attempt")
}

// metadata is where clouds answer with the machine's credentials, and world an address of
// nobody's (RFC 5737).
const metadata, world = "169.254.169.254", "192.0.2.1"

const envNet = "FORGEYARD_TEST_NET"

// ownNet goes on in a network namespace in which the metadata address is one of this machine's
// own, and so is one of the world: that nobody answers a job there says nothing where nobody
// does at all. It returns where it is there already, or where there is none to be had.
func ownNet() error {
	if os.Geteuid() != 0 || os.Getenv(envNet) != "" {
		return nil
	}
	runtime.LockOSThread() // exec makes this thread the only one, with its namespace
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil || unix.Unshare(unix.CLONE_NEWNET) != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for name, addr := range map[string]string{"lo": "127.0.0.1", "lo:1": metadata, "lo:2": world} {
		r, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		if err := errors.Join(r.SetInet4Addr(net.ParseIP(addr).To4()), unix.IoctlIfreq(s, unix.SIOCSIFADDR, r)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		r.SetUint16(unix.IFF_UP)
		if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return unix.Exec(self, os.Args, append(os.Environ(), envNet+"=1"))
}

// yard is a node with secrets and a neighbour.
type yard struct {
	*bench
	env    map[string]string
	victim *Attempt
}

func newYard(t *testing.T) *yard {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(envNet) == "" {
		needs.Lacking(t, "this machine gives no network namespace: nobody would answer as a cloud does")
	}
	y := &yard{bench: newBench(t)}
	program := filepath.Join(y.dir, "bin", "escape")
	y.r.cfg.Executors = withUsers(t, users.Config{}, executor.Bind{Host: filepath.Dir(program), Inside: filepath.Dir(program)})
	b, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	identity := filepath.Join(y.dir, "data", "identity")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(identity, 0o700))
	must(os.Mkdir(filepath.Dir(program), 0o755))
	must(os.WriteFile(program, b, 0o755))
	id, err := exec.LookPath("id")
	must(err)
	b, err = os.ReadFile(id)
	must(err)
	setuid := filepath.Join(filepath.Dir(program), "id")
	must(os.WriteFile(setuid, b, 0o755))
	must(os.Chmod(setuid, 0o755|os.ModeSetuid))
	for _, name := range []string{"node.key", "enrolment"} {
		must(os.WriteFile(filepath.Join(identity, name), []byte("ESCAPED\n"), 0o600))
	}
	s := spec("trap 'echo ESCAPED' USR1; echo TREASURE > loot; echo ready; while :; do sleep 1; done")
	s.Sandbox, s.Env, s.Timeouts.Run = job.SandboxStrict, map[string]string{"HOARD": "JEWELS"}, 10*patience
	tk := task(s)
	tk.Authority.Attempt = victimID
	y.victim = y.start(tk)
	y.await(y.victim, "ready")
	pid := processOf(y.victim)
	y.env = map[string]string{
		"PROGRAM": program, "SETUID": setuid, "BOMB": filepath.Base(y.dir) + ".bomb",
		"KEY": filepath.Join(identity, "node.key"), "DATA": filepath.Join(y.dir, "data"), "SOCK": filepath.Join(y.dir, "data", "control.sock"),
		"ABSTRACT": filepath.Base(y.dir), "AGENT": strconv.Itoa(os.Getpid()), "VICTIM": strconv.Itoa(pid), "LOOT": filepath.Join(y.victim.root, "build", "loot"),
	}
	for _, l := range [][3]string{{"unix", y.env["SOCK"], "SOCK"}, {"unix", "@" + y.env["ABSTRACT"], ""}, {"tcp", "127.0.0.1:0", "TCP"}, {"tcp", metadata + ":80", "METADATA"}} {
		ln, err := net.Listen(l[0], l[1])
		must(err)
		t.Cleanup(func() { ln.Close() })
		if l[2] != "" {
			y.env[l[2]] = ln.Addr().String()
		}
	}
	must(os.Chmod(y.env["SOCK"], 0o600))
	shm, err := os.CreateTemp("/dev/shm", "fyrun-")
	must(err)
	t.Cleanup(func() { shm.Close(); os.Remove(shm.Name()) })
	t.Cleanup(func() { os.Remove("/dev/shm/" + y.env["BOMB"]) }) // where it was left
	segment, err := unix.SysvShmGet(unix.IPC_PRIVATE, os.Getpagesize(), 0o666)
	must(err)
	t.Cleanup(func() { _, _ = unix.SysvShmCtl(segment, unix.IPC_RMID, nil) })
	return y
}

// try carries one attempt out, and then a job that does nothing wrong.
func (y *yard) try(t *testing.T, x escape, in job.Sandbox) {
	y.bench.t = t
	script := x.script
	if script == "" {
		script = `"$PROGRAM"`
	}
	s := spec(script)
	s.Sandbox, s.Env = in, map[string]string{envEscape: x.name}
	for k, v := range y.env {
		s.Env[k] = v
	}
	if x.change != nil {
		x.change(&s)
	}
	a := y.start(task(s))
	if x.during != nil {
		y.await(a, "waits")
		x.during(y, a)
	}
	res, _ := y.wait(a)
	said := y.text(a)
	switch {
	case strings.Contains(y.stdout(a), "ESCAPED"):
		t.Errorf("it got through:\n%s", said)
	case !x.any && res.Category != x.ends:
		t.Errorf("it ended as %q, want %q: %+v\n%s", res.Category, x.ends, res, said)
	case x.ends == "" && !strings.Contains(said, "tried") && x.change == nil:
		t.Errorf("it was not tried:\n%s", said)
	}
	if err := a.Finish(false); err != nil {
		t.Errorf("it cannot be cleaned up: %v", err)
	}
	if _, err := os.Stat("/dev/shm/" + y.env["BOMB"]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its shared memory is left: %v", err)
	}
	// The first process of a namespace that is dead, and has no memory and no files any more,
	// may wait in the kernel for the others.
	left := of(t, a.user.UID)
	for end := time.Now().Add(patience); len(left) > 0 && time.Now().Before(end); left = of(t, a.user.UID) {
		time.Sleep(10 * time.Millisecond)
	}
	if len(left) > 0 {
		t.Errorf("processes of user %d are left: %v", a.user.UID, left)
	}
	y.clean(t, in)
}

// of lists the processes of a user.
func of(t *testing.T, uid int) (pids []string) {
	t.Helper()
	l, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range l {
		pid, err := strconv.Atoi(filepath.Base(p))
		if err != nil {
			continue
		}
		// What is dead and not collected yet by the machine's first process does nothing more.
		if pr, err := executor.ReadProc(pid); err != nil || !pr.Alive() {
			continue
		}
		if st, err := os.Stat(p); err == nil && int(ownerOf(st)) == uid {
			pids = append(pids, filepath.Base(p))
		}
	}
	return pids
}

// clean runs a job that does nothing wrong, and looks after the neighbour.
func (y *yard) clean(t *testing.T, in job.Sandbox) {
	t.Helper()
	s := spec("ls; echo fine > f; ln f out; cat out") // a hard link of its own is an output like any
	s.Sandbox, s.Outputs = in, []job.OutputDecl{{Path: "out"}}
	res, _, a := y.run(s)
	if res.Outcome != job.OutcomeDone || len(res.Outputs) != 1 || y.stdout(a) != "fine\n" {
		t.Errorf("the next job is harmed: %+v\n%s", res, y.text(a))
	}
	if err := a.Finish(false); err != nil {
		t.Error(err)
	}
	loot, err := os.ReadFile(y.env["LOOT"])
	select {
	case <-y.victim.Done():
		t.Fatal("the neighbour was ended")
	default:
	}
	if err != nil || string(loot) != "TREASURE\n" || strings.Contains(y.stdout(y.victim), "ESCAPED") {
		t.Errorf("the neighbour is harmed: %q %v", loot, err)
	}
}

// TestEscapes: each attempt is refused or contained, and the next job is unharmed. A workload has
// files to speak with its runner by, and reaches none of the daemon's sockets (CK-404).
func TestEscapes(t *testing.T) {
	needs.Root(t, "run as other users")
	y := newYard(t)
	tried := 0
	for _, in := range []job.Sandbox{job.SandboxStrict, job.SandboxProcess} {
		for _, x := range escapes {
			if in == job.SandboxProcess && x.strict {
				continue
			}
			if x.ends == job.WorkloadFailed && runtime.GOARCH != "amd64" {
				t.Logf("%s: %s has one kind of calls only", x.name, runtime.GOARCH)
				continue
			}
			tried++
			t.Run(string(in)+"/"+x.name, func(t *testing.T) { y.try(t, x, in) })
		}
	}
	if len(escapes) < 40 {
		t.Errorf("%d attempts, 40 are promised", len(escapes))
	}
	t.Logf("%d attempts in %d jobs", len(escapes), tried)
}

// The attempts must be able to get through somewhere, or that they do not says nothing: those
// that need no machine of their own do so as this test's user, outside of any job.
func TestEscapesGetOut(t *testing.T) {
	needs.Root(t, "be who may")
	y := newYard(t)
	for _, name := range []string{
		"read the node's key RA-365 RA-453", "read the enrolment RA-364 RA-366", "list the node's folders RA-369", "link the key into the workspace",
		"read the node's environment", "list the node's descriptors", "signal the node", "read another workspace RA-367 RA-454", "read another job's environment",
		"read the shadow file RA-368", "mount", "user namespace", "raw socket", "packet socket", "talk to the control socket RA-370", "talk to a nameless socket of the host",
		"the host's loopback", "mount by the new calls", "page faults of its own", "requests by ring", "count the kernel's events", "keys",
		"cloud metadata address", "the world", "find shared memory of others", "find shared segments of others",
		"trace the node", "trace the neighbour", "read the neighbour's memory", "read the node's memory", "copy the node's memory", "take a descriptor of the node",
		"make a device", "open disks and memory",
	} {
		if !y.getsOut(t, name) {
			t.Errorf("%s gets nothing where nothing stands in its way", name)
		}
	}
	if !y.getsOut(t, "set-uid program of root's RA-374", "setpriv", "--reuid", "65533", "--regid", "65533", "--clear-groups") {
		t.Error("the set-uid program gives nobody anything")
	}
}

// getsOut makes an attempt as root, or by way of a program, with mounts of its own so that this machine keeps its.
func (y *yard) getsOut(t *testing.T, name string, as ...string) bool {
	t.Helper()
	i := slices.IndexFunc(escapes, func(x escape) bool { return x.name == name })
	script := escapes[i].script
	if script == "" {
		script = `exec "$PROGRAM"`
	}
	argv := append(append([]string{"-m"}, as...), "/bin/sh", "-c", script)
	c := exec.Command("unshare", argv...)
	c.Dir, c.Env = t.TempDir(), append(os.Environ(), envEscape+"="+name)
	for k, v := range y.env {
		c.Env = append(c.Env, k+"="+v)
	}
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ESCAPED") {
		t.Logf("%s: %v: %s", name, err, out)
		return false
	}
	return true
}
