package node

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	ma "github.com/multiformats/go-multiaddr"

	"github.com/forgeyard/forgeyard-node"
)

// One daemon a data dir: the second is told who has it, and after the first has let go
// the folder is free.
func TestDataDirHasOneHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	d, err := openDataDir(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = openDataDir(path)
	if forgeyard.KindOf(err) != forgeyard.Conflict || !strings.Contains(fmt.Sprint(err), fmt.Sprintf("process %d", os.Getpid())) {
		t.Fatalf("a second holder: %v", err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	again, err := openDataDir(path)
	if err != nil {
		t.Fatalf("after it was let go: %v", err)
	}
	if err := again.close(); err != nil {
		t.Fatal(err)
	}
}

// Nobody may list the folders, workloads may pass to their workspace, and a folder that
// stood open is closed. What a node stores, where it works and what it has of logs each
// have a folder of their own (RA-177, RA-246).
func TestDataDirIsPrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes are not kept there")
	}
	path := filepath.Join(t.TempDir(), "data")
	if err := os.MkdirAll(filepath.Join(path, dirCAS), 0o777); err != nil {
		t.Fatal(err)
	}
	d, err := openDataDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	for name, want := range map[string]os.FileMode{"": 0o711, dirWorkspaces: 0o711, "identity": 0o700, dirRaft: 0o700, dirCAS: 0o700, dirSpool: 0o700, dirLayers: 0o700, dirAgent: 0o700, dirDevices: 0o700} {
		st, err := os.Stat(d.join(name))
		if err != nil || st.Mode().Perm() != want {
			t.Errorf("%q: %v %v, want %v", name, st.Mode(), err, want)
		}
	}
	if st, err := os.Stat(d.join(fileLock)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("lock: %v %v", st, err)
	}
}

func TestDataDirThatCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openDataDir(filepath.Join(file, "data")); err == nil || !strings.Contains(err.Error(), "file") {
		t.Fatalf("%v", err)
	}
}

// names lists a folder.
func names(t *testing.T, dir string) string {
	t.Helper()
	l, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range l {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

// 07§41: a file is the old one or the new one, and a write that fails leaves nothing.
func TestWriteFileIsWholeOrNothing(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	for _, text := range []string{"one", "two, longer", ""} {
		if err := writeFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(file); err != nil || string(b) != text {
			t.Fatalf("%q %v", b, err)
		}
	}
	if st, err := os.Stat(file); err != nil || (runtime.GOOS != "windows" && st.Mode().Perm() != 0o600) {
		t.Fatalf("%v %v", st, err)
	}
	// The rename fails: something that is no file stands in its place.
	if err := os.MkdirAll(filepath.Join(dir, "d", "inside"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeFile(filepath.Join(dir, "d"), []byte("x"), 0o600); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "d")) {
		t.Fatalf("over a folder: %v", err)
	}
	if got := names(t, dir); got != "d f" {
		t.Errorf("left behind: %s", got)
	}
	if err := writeFile(filepath.Join(dir, "none", "f"), nil, 0o600); forgeyard.KindOf(err) != forgeyard.NotFound {
		t.Errorf("into no folder: %v", err)
	}
	if err := removeFile(file); err != nil {
		t.Fatal(err)
	}
	if err := removeFile(file); err != nil {
		t.Errorf("a second removal: %v", err)
	}
}

// A node that comes back is where the others look for it.
func TestPortZeroIsSticky(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ports")
	p := loadPorts(path)
	if got := p.sticky("mesh", "127.0.0.1:0"); got != "127.0.0.1:0" {
		t.Fatalf("the first time: %s", got)
	}
	p.keep("mesh", 4001)
	p.keep("gossip", 0) // nothing was learnt
	if err := p.save(); err != nil {
		t.Fatal(err)
	}
	p = loadPorts(path)
	for _, c := range []struct{ name, addr, want string }{
		{"mesh", "127.0.0.1:0", "127.0.0.1:4001"},
		{"mesh", "[::1]:0", "[::1]:4001"},
		{"mesh", ":0", ":4001"},
		{"mesh", "127.0.0.1:9000", "127.0.0.1:9000"}, // somebody said which
		{"mesh", "nonsense", "nonsense"},
		{"gossip", "127.0.0.1:0", "127.0.0.1:0"},
	} {
		if got := p.sticky(c.name, c.addr); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.name, c.addr, got, c.want)
		}
	}
}

// Noting the same ports again writes nothing, so that a full disk does not mind (E25).
func TestTheSamePortsAreNotNotedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ports")
	p := loadPorts(path)
	p.keep("mesh", 4001)
	if err := p.save(); err != nil {
		t.Fatal(err)
	}
	p = loadPorts(path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	p.keep("mesh", 4001)
	if err := p.save(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it was written again: %v", err)
	}
	p.keep("mesh", 4002)
	if err := p.save(); err != nil {
		t.Fatal(err)
	}
	if got := loadPorts(path).sticky("mesh", "127.0.0.1:0"); got != "127.0.0.1:4002" {
		t.Errorf("a new port was not noted: %s", got)
	}
}

// A file that is damaged, however, costs only the ports of before.
func TestDamagedPortsAreTakenAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ports")
	for _, text := range []string{"", "{", "null", "[1]", `{"mesh":"x"}`, `{"mesh":70000}`, `{"mesh":-1}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p := loadPorts(path)
		if got := p.sticky("mesh", "127.0.0.1:0"); got != "127.0.0.1:0" {
			t.Errorf("%q: %s", text, got)
		}
		p.keep("mesh", 4001)
		if got := p.sticky("mesh", "127.0.0.1:0"); got != "127.0.0.1:4001" {
			t.Errorf("%q, then kept: %s", text, got)
		}
	}
}

func TestPortOf(t *testing.T) {
	var all []ma.Multiaddr
	for _, s := range []string{"/ip4/127.0.0.1/udp/7/quic-v1", "/ip4/127.0.0.1/tcp/4001", "/ip4/127.0.0.1/tcp/4002"} {
		a, err := ma.NewMultiaddr(s)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
	if portOf(all) != 4001 || portOf(all[:1]) != 0 || portOf(nil) != 0 {
		t.Errorf("%d", portOf(all))
	}
	if portOfAddr("127.0.0.1:7451") != 7451 || portOfAddr("nowhere") != 0 || portOfAddr("x:http") != 0 {
		t.Error("a port of an address")
	}
}

// The socket is private from its first moment, whatever the umask.
func TestListenPrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes are not kept there")
	}
	path := filepath.Join(t.TempDir(), "s")
	var l net.Listener
	l, err := native{}.ListenPrivate(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if st, err := os.Stat(path); err != nil || st.Mode().Perm()&0o077 != 0 {
		t.Fatalf("%v %v", st.Mode(), err)
	}
}
