package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node/internal/needs"
)

// serviceUser is nobody's account, as that of a service is.
const serviceUser = 65533

// service is a daemon under a service manager that listens on a socket.
type service struct {
	t       *testing.T
	bin     string
	dir     string
	manager *net.UnixConn
	proc    *proc
}

// RA-384: the daemon does what the unit in docs/operations.md says of it: it tells its manager
// that it is ready when it answers and not before, that it stops when it is asked to, reads its
// settings again by ExecReload, and has ended within TimeoutStopSec.
func TestService(t *testing.T) {
	s := newService(t)
	u := unit(t)
	for key, want := range map[string]string{"Type": "notify", "ExecStart": "/usr/local/bin/forgeyard-node up", "ExecReload": "kill -HUP $MAINPID", "KillMode": "mixed", "Delegate": "yes"} {
		if u[key] != want {
			t.Errorf("%s is %q, not %q", key, u[key], want)
		}
	}
	s.verify(u)
	s.start("--init", "--site", "lab", "--name", "n1")
	if got := s.told(); got != "READY=1" {
		t.Fatalf("the manager was told %q", got)
	}
	if v := s.show("status"); v["state"] == nil {
		t.Errorf("it was ready and did not answer: %v", v)
	}
	if err := syscall.Kill(s.proc.cmd.Process.Pid, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	s.until("the settings were read again", func() bool { return strings.Contains(s.proc.err.String(), "settings read again") })
	s.stop(u)
}

// RA-387, RA-379: as a user of its own the daemon is a whole member. What it cannot do it says
// beforehand, and work that asks for a bound waits for a runner that holds it; with control
// groups that were delegated to it, as systemd does, the same work runs here. Whether it is
// privileged doctor and status say, in words and for programs.
func TestServiceUser(t *testing.T) {
	needs.Root(t, "start a daemon as another user")
	if _, err := exec.LookPath("bwrap"); err != nil {
		needs.Lacking(t, "%v", err)
	}
	root := newService(t)
	root.start("--init", "--site", "root", "--name", "n0")
	root.says(true)
	root.stop(unit(t))

	s := newService(t)
	if err := os.Chown(s.dir, serviceUser, serviceUser); err != nil {
		t.Fatal(err)
	}
	as := []string{"setpriv", "--reuid", fmt.Sprint(serviceUser), "--regid", fmt.Sprint(serviceUser), "--clear-groups"}
	s.startAs(as, "--init", "--site", "lab", "--name", "n1")
	s.says(false)
	job := filepath.Join(s.dir, "job.yaml")
	text := "version: 1\nkind: build\njob:\n  steps: [{sh: 'id -u'}]\n  resources: {cpu: 0.1, memory: 64MiB, disk: 64MiB}\n"
	if err := os.WriteFile(job, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var made struct {
		Jobs []string `json:"job_ids"`
	}
	s.ask(&made, "submit", job)
	why := func() string { b, _ := json.Marshal(s.show("job", "show", made.Jobs[0])); return string(b) }
	s.until("it says which bound it does not hold", func() bool { return strings.Contains(why(), "cannot enforce a limit of memory") })
	s.stop(unit(t))

	groups := delegated(t)
	enter := "for g in " + strings.Join(groups, " ") + `; do echo $$ >$g/cgroup.procs || exit 1; done; exec "$@"`
	s.startAs(append([]string{"sh", "-c", enter, "enter"}, as...), "up")
	s.until("the work is done here", func() bool { return s.show("job", "show", made.Jobs[0])["status"] == "done" })
	s.says(false)
	s.stop(unit(t))
}

// says looks at what a person and a program are told of the daemon's rights.
func (s *service) says(privileged bool) {
	s.t.Helper()
	text := "root, privileged"
	if !privileged {
		text = fmt.Sprintf("user %d, not privileged", serviceUser)
	}
	if v, _ := s.show("status")["account"].(map[string]any); v["privileged"] != privileged {
		s.t.Errorf("status -o json: %v", v)
	}
	for cmd, want := range map[string]string{"status": `(?m)^runs as +` + text + `$`, "doctor": `(?m)^account +ok +` + text} {
		out, err := exec.Command(s.bin, "--data-dir", s.data(), cmd).CombinedOutput()
		if !regexp.MustCompile(want).Match(out) {
			s.t.Errorf("%s (%v) does not say %s:\n%s", cmd, err, want, out)
		}
	}
}

func newService(t *testing.T) *service {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "fyservice-")
	if err == nil {
		err = os.Chmod(dir, 0o755) // the user passes through, and to the programs
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, name := range []string{"forgeyard-node", "fyjob"} {
		b, err := os.ReadFile(filepath.Join(os.Getenv("FORGEYARD_BIN"), name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	m, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err == nil {
		err = os.Chmod(filepath.Join(dir, "notify"), 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return &service{t: t, bin: filepath.Join(dir, "forgeyard-node"), dir: dir, manager: m}
}

func (s *service) data() string { return filepath.Join(s.dir, "data") }

func (s *service) start(args ...string) { s.startAs(nil, args...) }

// startAs starts the daemon by way of other programs, and waits until it is ready.
func (s *service) startAs(by []string, args ...string) {
	s.t.Helper()
	all := append(by, s.bin, "up", "--data-dir", s.data(), "--listen", "127.0.0.1:0", "--gossip", "127.0.0.1:0", "--http", "127.0.0.1:0")
	if args[0] != "up" {
		all = append(all, args...)
	}
	cmd := exec.Command("env", append([]string{"NOTIFY_SOCKET=" + filepath.Join(s.dir, "notify")}, all...)...)
	p, err := launch("forgeyard-node", cmd, s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	s.proc = p
	s.t.Cleanup(p.kill)
	select {
	case _, ok := <-p.ready:
		if !ok {
			s.t.Fatalf("it ended before it was ready: %v\n%s", <-p.done, p.err.tail())
		}
	case <-time.After(readyWithin):
		s.t.Fatalf("it is not ready after %s\n%s", readyWithin, p.err.tail())
	}
}

// told is the next word to the manager.
func (s *service) told() string {
	s.t.Helper()
	b := make([]byte, 256)
	if err := s.manager.SetReadDeadline(time.Now().Add(readyWithin)); err != nil {
		s.t.Fatal(err)
	}
	n, err := s.manager.Read(b)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b[:n])
}

// stop ends the service as the unit says.
func (s *service) stop(u map[string]string) {
	s.t.Helper()
	within, err := time.ParseDuration(u["TimeoutStopSec"] + "s")
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.proc.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	for got := ""; got != "STOPPING=1"; {
		got = s.told()
	}
	select {
	case err := <-s.proc.done:
		if err != nil {
			s.t.Fatalf("it ended with %v\n%s", err, s.proc.err.tail())
		}
	case <-time.After(within):
		s.t.Fatalf("it runs on after %s\n%s", within, s.proc.err.tail())
	}
}

func (s *service) show(args ...string) map[string]any {
	s.t.Helper()
	var v map[string]any
	s.ask(&v, args...)
	return v
}

func (s *service) ask(v any, args ...string) {
	s.t.Helper()
	out, err := exec.Command(s.bin, append([]string{"--data-dir", s.data(), "-o", "json"}, args...)...).Output()
	if err == nil {
		err = json.Unmarshal(out, v)
	}
	if err != nil {
		s.t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

func (s *service) until(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(readyWithin); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("not after %s: %s\n%s", readyWithin, what, s.proc.err.tail())
		}
	}
}

// unit reads the unit file of docs/operations.md.
func unit(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "```ini\n")
	body, _, ok2 := strings.Cut(rest, "```")
	if !ok || !ok2 {
		t.Fatal("docs/operations.md has no unit")
	}
	u := map[string]string{"": body}
	for line := range strings.Lines(body) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(k, "#") {
			u[k] = v
		}
	}
	return u
}

// verify lets systemd read the unit, where it is installed.
func (s *service) verify(u map[string]string) {
	s.t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		needs.Less(s.t, "systemd did not read the unit: %v", err)
		return
	}
	name := filepath.Join(s.dir, "forgeyard-node.service")
	if err := os.WriteFile(name, []byte(strings.ReplaceAll(u[""], "/usr/local/bin/forgeyard-node", s.bin)), 0o644); err != nil {
		s.t.Fatal(err)
	}
	out, err := exec.Command("systemd-analyze", "verify", name).CombinedOutput()
	if err != nil || strings.Contains(string(out), filepath.Base(name)) {
		s.t.Errorf("systemd reads the unit otherwise: %v\n%s", err, out)
	}
}

// delegated makes control groups that are the service's, as systemd does with Delegate=yes.
func delegated(t *testing.T) (dirs []string) {
	t.Helper()
	name := fmt.Sprintf("fyservice-%d", os.Getpid())
	for _, c := range []string{"cpu", "memory", "pids"} {
		if isDir(filepath.Join("/sys/fs/cgroup", c)) {
			dirs = append(dirs, filepath.Join("/sys/fs/cgroup", c, name))
		}
	}
	if len(dirs) == 0 {
		if err := os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+cpu +memory +pids"), 0o644); err != nil {
			needs.Lacking(t, "no controllers can be handed down: %v", err)
		}
		dirs = []string{filepath.Join("/sys/fs/cgroup", name)}
	}
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			needs.Lacking(t, "no control group can be made: %v", err)
		}
		t.Cleanup(func() {
			for end := time.Now().Add(goneWithin); exec.Command("find", dir, "-depth", "-type", "d", "-delete").Run() != nil && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			}
		})
		for _, file := range []string{"", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads", "tasks"} {
			if err := os.Chown(filepath.Join(dir, file), serviceUser, serviceUser); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}
	}
	return dirs
}
