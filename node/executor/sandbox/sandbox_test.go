//go:build linux

package sandbox

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
	"github.com/forgeyard/forgeyard-node/node/executor/exectest"
)

func fresh(t *testing.T) executor.Executor { return with(t, Config{}) }

func with(t *testing.T, cfg Config) executor.Executor {
	t.Helper()
	e, err := New(cfg)
	if forgeyard.KindOf(err) == forgeyard.Unavailable {
		needs.Lacking(t, "no sandbox on this machine: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestConformance(t *testing.T) { exectest.Test(t, fresh) }

// hostWorld is what an attacker is after: a secret, a server, a socket, a process.
type hostWorld struct {
	dir, secret, sock, tcp string
	pid                    int
}

func newHostWorld(t *testing.T) hostWorld {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "fyhost-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	w := hostWorld{dir: dir, secret: filepath.Join(dir, "secret"), sock: filepath.Join(dir, "sock")}
	if err := os.WriteFile(w.secret, []byte("TOPSECRET"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, l := range [][2]string{{"unix", w.sock}, {"unix", "@" + filepath.Base(dir)}, {"tcp", "127.0.0.1:0"}} {
		ln, err := net.Listen(l[0], l[1])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		if l[0] == "tcp" {
			w.tcp = ln.Addr().String()
		}
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				c.Write([]byte("REACHED"))
				c.Close()
			}
		}()
	}
	if err := os.Chmod(w.sock, 0o777); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	w.pid = c.Process.Pid
	return w
}

const connect = `python3 - <<'P'
import socket
def go(f, a):
    s = socket.socket(f, socket.SOCK_STREAM); s.settimeout(5)
    try:
        s.connect(a); print(s.recv(7).decode())
    except OSError as e: print('no:', e)
go(socket.AF_UNIX, '%s'); go(socket.AF_UNIX, '\0%s')
h, p = '%s'.rsplit(':', 1); go(socket.AF_INET, (h, int(p)))
P`

// A workload that attacks its sandbox: RA-220, 07§176.
func TestAttacks(t *testing.T) {
	w := newHostWorld(t)
	b := exectest.New(t, fresh(t))
	py := ""
	if _, err := os.Stat("/usr/bin/python3"); err == nil {
		py = strings.ReplaceAll(fmt.Sprintf(connect, w.sock, filepath.Base(w.dir), w.tcp), "python3", "/usr/bin/python3")
	} else {
		t.Log("no /usr/bin/python3: sockets are attacked by shell only")
	}
	other := exectest.New(t, fresh(t)) // the workspace of another job
	theirs := filepath.Join(other.Root, executor.BuildDir, "theirs")
	if err := os.WriteFile(theirs, []byte("THEIRS"), 0o666); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ script, never string }{
		"another workspace RA-454":  {"cat " + theirs + "; cat ../../../" + filepath.Base(other.Root) + "/" + executor.BuildDir + "/theirs; cat $(find / -xdev -name theirs 2>/dev/null) /dev/null; echo x >> " + theirs, "THEIRS"},
		"read a host file":          {"cat " + w.secret + "; cat /proc/1/root" + w.secret + "; find / -xdev -name secret 2>/dev/null | xargs cat", "TOPSECRET"},
		"read it through a link":    {"ln -s " + w.secret + " l; cat l; cat /proc/self/cwd/../../../../.." + w.secret, "TOPSECRET"},
		"read the shadow file":      {"cat /etc/shadow && echo SHADOW", "SHADOW"},
		"reach sockets and network": {py, "REACHED"},
		"network by shell":          {"(exec 3<>/dev/tcp/" + strings.Replace(w.tcp, ":", "/", 1) + ") && echo REACHED", "REACHED"},
		"write the source":          {"(echo x > /work/source/x) && echo WROTE; chmod 777 /work/source && (echo x > /work/source/x) && echo WROTE", "WROTE"},
		"write the toolchain":       {"(echo x > /usr/x) && echo WROTE; (echo x > /etc/passwd) && echo WROTE; (echo x >> /usr/bin/env) && echo WROTE", "WROTE"},
		"see host processes":        {fmt.Sprintf("[ -d /proc/%d ] && tr '\\0' ' ' < /proc/%d/cmdline; kill -0 %d && echo SEEN; for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; done", w.pid, w.pid, w.pid), "sleep 1000"},
		"kill a host process":       {fmt.Sprintf("kill -9 %d && echo KILLED", w.pid), "KILLED"},
		"remount":                   {"mount -o remount,rw / && echo MOUNTED; mount -t tmpfs x /tmp && echo MOUNTED; umount /work/source && echo MOUNTED", "MOUNTED"},
		"new namespaces":            {"unshare -Ur sh -c 'echo MADE'; unshare -m true && echo MADE", "MADE"},
		"become root":               {"setpriv --reuid 0 echo ROOT; [ \"$(id -u)\" = 0 ] && echo ROOT; su -c 'echo ROOT' </dev/null", "ROOT"},
		"read kernel and disks":     {"head -c1 /dev/kmsg && echo DEV; head -c1 /dev/vda && echo DEV; head -c1 /dev/mem && echo DEV; mknod d b 8 0 && echo DEV", "DEV"},
		"control groups":            {"ls /sys/fs/cgroup && echo CG; mkdir cg; mount -t cgroup2 x cg && echo CG", "CG"},
		"write the runner's files":  {"(echo x > /work/ctl/inbox/1) && echo CTL; mv /work/ctl/inbox /work/ctl/y && echo CTL; (echo x > /work/restore/x) && echo CTL; (echo x > /work/bin/x) && echo CTL", "CTL"},
	} {
		t.Run(name, func(t *testing.T) {
			r := b.MustStart(c.script + "\necho survived")
			b.Finish(r)
			if strings.Contains(r.Out.String(), c.never) {
				t.Errorf("the sandbox leaks: %s\n%s", r.Out, r.Err)
			}
			if !strings.Contains(r.Out.String(), "survived") {
				t.Errorf("the attack did not run: %s %s", r.Out, r.Err)
			}
		})
	}
	if got, err := os.ReadFile(theirs); err != nil || string(got) != "THEIRS" {
		t.Errorf("another job's file is %q now: %v", got, err)
	}
	// The attack is one that would succeed outside.
	if py != "" {
		out, err := exec.Command("/bin/sh", "-c", py).Output()
		if n := strings.Count(string(out), "REACHED"); err != nil || n != 3 {
			t.Fatalf("outside the sandbox the same script reached %d of 3: %s %v", n, out, err)
		}
	}
}

// Hostname, user and files tell nothing of the host.
func TestInside(t *testing.T) {
	b := exectest.New(t, fresh(t))
	r := b.MustStart("hostname; id -un; id -u; ls /; ls /work; cat /etc/hostname; echo $$ >/dev/null; ls /dev/shm; ulimit -c")
	b.Finish(r)
	want := "forgeyard\njob\n1000\n"
	if !strings.HasPrefix(r.Out.String(), want) {
		t.Errorf("%q %q", r.Out, r.Err)
	}
	host, err := os.Hostname()
	if err == nil && host != "forgeyard" && strings.Contains(r.Out.String(), host) {
		t.Errorf("host name %q is visible", host)
	}
	for _, hidden := range []string{"\nrun\n", "\nvar\n", "\nroot\n", "\nhome\n", "\nsys\n"} {
		if strings.Contains(r.Out.String(), hidden) {
			t.Errorf("%q is visible: %q", hidden, r.Out)
		}
	}
	if !strings.HasSuffix(r.Out.String(), "\n0\n") { // RA-268
		t.Errorf("core dumps are possible: %q", r.Out)
	}
}

// Every kind of namespace is another than this test's, a machine's control groups among them.
func TestNamespaces(t *testing.T) {
	b := exectest.New(t, fresh(t))
	kinds := []string{"ipc", "uts", "cgroup", "pid", "net", "user", "mnt"}
	r := b.MustStart("for n in " + strings.Join(kinds, " ") + "; do readlink /proc/self/ns/$n; done")
	b.Finish(r)
	inside := strings.Fields(r.Out.String())
	if len(inside) != len(kinds) {
		t.Fatalf("%q %q", r.Out, r.Err)
	}
	for i, n := range kinds {
		host, err := os.Readlink("/proc/self/ns/" + n)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(inside[i], n+":[") || inside[i] == host {
			t.Errorf("%s is %s inside, %s outside", n, inside[i], host)
		}
	}
}

// RA-185: tools that the node shows to its sandboxes can be run and not be changed.
func TestExtraBindsAndDevices(t *testing.T) {
	dir := t.TempDir() // 0700: the dedicated user cannot pass through it
	if err := os.WriteFile(filepath.Join(dir, "tool"), []byte("#!/bin/sh\necho tool\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	b := exectest.New(t, with(t, Config{ReadOnly: []executor.Bind{{Host: dir, Inside: "/opt/tools"}}}))
	r := b.MustStart("/opt/tools/tool; (echo x > /opt/tools/x) && echo WROTE; echo hello > /work/devices/sink && echo sunk", func(r *executor.Request) {
		if err := os.WriteFile(filepath.Join(b.Root, "devices", "sink"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		r.Devices = []executor.Bind{{Host: "/dev/null", Inside: "/work/devices/sink"}}
	})
	b.Finish(r)
	if r.Out.String() != "tool\nsunk\n" {
		t.Errorf("%q %q", r.Out, r.Err)
	}
	_, err := b.Start("exit 0", func(r *executor.Request) { r.ReadOnly = []executor.Bind{{Host: "/no/such", Inside: "/opt/x"}} })
	if forgeyard.KindOf(err) != forgeyard.Invalid && os.Geteuid() == 0 {
		t.Errorf("a bind that is not there: %v", err)
	}
}

func TestHostNetworkOnlyByPolicy(t *testing.T) {
	host := func(r *executor.Request) { r.Network = job.NetworkHost }
	if _, err := exectest.New(t, fresh(t)).Start("exit 0", host); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Errorf("%v", err)
	}
	w := newHostWorld(t)
	b := exectest.New(t, with(t, Config{HostNetwork: func() bool { return true }}))
	r := b.MustStart("bash -c 'cat < /dev/tcp/"+strings.Replace(w.tcp, ":", "/", 1)+"'", host)
	b.Finish(r)
	if r.Out.String() != "REACHED" {
		t.Errorf("%q %q", r.Out, r.Err)
	}
}

// RA-378: rootless, the same suite as an ordinary user, in a child process.
func TestRootless(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("TestConformance already runs without root")
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "fyrootless-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	bin := filepath.Join(dir, "sandbox.test")
	if err := os.WriteFile(bin, self, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("setpriv", "--reuid", "65533", "--regid", "65533", "--clear-groups", bin, "-test.v", "-test.run", "^(TestConformance|TestAttacks|TestInside|TestNamespaces|TestExtraBindsAndDevices)$")
	c.Dir = "/"
	c.Env = []string{"PATH=/usr/bin:/bin", "HOME=/", "TMPDIR=/tmp", "CI=" + os.Getenv("CI")}
	out, err := c.CombinedOutput()
	if err != nil || bytes.Contains(out, []byte("SKIP")) {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestOutOfMemoryBeforeItWasSeen: where the kernel kills bubblewrap itself for memory, the
// step ran out of memory; nothing is wrong with the sandbox of this node.
func TestOutOfMemoryBeforeItWasSeen(t *testing.T) {
	b := exectest.New(t, fresh(t))
	c, err := b.Exec.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(c.Limits, "memory") {
		needs.Lacking(t, "memory is not enforced here: %s", c.Version)
	}
	r := b.MustStart("exit 0", func(r *executor.Request) { r.Limits.Memory = 64 << 10 })
	if x := b.Finish(r); !x.OOM {
		t.Errorf("bubblewrap in 64 KiB gave %+v", x)
	}
}
