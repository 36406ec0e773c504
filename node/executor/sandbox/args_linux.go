package sandbox

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// hostDirs are shown read-only when they are there; on a merged /usr most are links.
var hostDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// hostEtc are the files of /etc that programs need and that hold no secret:
// certificates without their keys, the loader's cache, links between alternatives.
var hostEtc = []string{"/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted", "/etc/ca-certificates",
	"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime", "/etc/protocols", "/etc/services"}

// netEtc only matters with a network.
var netEtc = []string{"/etc/resolv.conf", "/etc/gai.conf"}

// madeFile is a file that we write.
type madeFile struct{ path, text string }

// made are the files of /etc that we write, so that they tell nothing of the host.
var made = []madeFile{
	{"/etc/passwd", fmt.Sprintf("root:x:0:0:root:/root:/bin/sh\njob:x:%d:%d:job:/work/build:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n", innerID, innerID)},
	{"/etc/group", fmt.Sprintf("root:x:0:\njob:x:%d:\nnogroup:x:65534:\n", innerID)},
	{"/etc/hosts", "127.0.0.1 localhost " + hostname + "\n::1 localhost\n"},
	{"/etc/hostname", hostname + "\n"},
	{"/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"},
}

// mount is one host path and where it goes.
type mount struct {
	host, inside string
	writable     bool
	device       bool
	optional     bool
}

// mounts lists what a request brings along, in order.
func (e *Executor) mounts(r executor.Request) []mount {
	at := func(dir string) string { return path.Join(viewRoot, dir) }
	in := func(dir string) string { return path.Join(r.Root, dir) }
	ms := []mount{
		{host: in(executor.TmpDir), inside: "/tmp", writable: true},
		{host: in(executor.TmpDir), inside: at(executor.TmpDir), writable: true},
		{host: in(executor.SourceDir), inside: at(executor.SourceDir)},
		{host: in(executor.BuildDir), inside: at(executor.BuildDir), writable: true},
		{host: in(executor.CkptDir), inside: at(executor.CkptDir), writable: true},
		{host: in(executor.CtlDir), inside: at(executor.CtlDir), writable: true},
		// Where the workload runs as the daemon's user, only a mount protects the answers.
		{host: path.Join(in(executor.CtlDir), "inbox"), inside: path.Join(at(executor.CtlDir), "inbox")},
		{host: in(executor.RestoreDir), inside: at(executor.RestoreDir)},
		{host: in(executor.DevicesDir), inside: at(executor.DevicesDir)},
		{host: in(executor.BinDir), inside: at(executor.BinDir)},
	}
	for _, b := range append(append([]executor.Bind{}, e.cfg.ReadOnly...), r.ReadOnly...) {
		ms = append(ms, mount{host: b.Host, inside: b.Inside})
	}
	for _, b := range r.Devices {
		ms = append(ms, mount{host: b.Host, inside: b.Inside, device: true})
	}
	return ms
}

// files are those that we write for a request. On the site's network only name servers that
// stand in it are asked.
func (e *Executor) files(r executor.Request) []madeFile {
	if r.Network != job.NetworkSite {
		return made
	}
	var confs [][]byte
	for _, f := range resolvConfs {
		if b, err := os.ReadFile(f); err == nil { // none: no names
			confs = append(confs, b)
		}
	}
	return append(slices.Clone(made), madeFile{"/etc/resolv.conf", e.site().Resolver(confs...)})
}

// resolvConfs name the servers that the machine asks; the second those behind systemd's own.
var resolvConfs = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// args is the bubblewrap command line. stage maps a host path to where the
// starting thread's mount namespace has it. dataFD is the number of the first
// descriptor that carries a made file; statusFD of the status pipe, behind which comes the
// one that holds the workload back until its network is there.
func (e *Executor) args(r executor.Request, ms []mount, made []madeFile, stage func(mount) string, dataFD, statusFD int) []string {
	a := []string{e.bwrap,
		"--unshare-user", "--uid", strconv.Itoa(innerID), "--gid", strconv.Itoa(innerID),
		"--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
		"--die-with-parent", "--new-session", "--hostname", hostname, "--cap-drop", "ALL"}
	if e.disableUserns {
		a = append(a, "--disable-userns")
	}
	if r.Network != job.NetworkHost {
		a = append(a, "--unshare-net")
	}
	for _, d := range hostDirs {
		a = append(a, hostDir(d)...)
	}
	a = append(a, "--dir", "/etc")
	etc := hostEtc
	if r.Network == job.NetworkHost {
		etc = append(append([]string{}, etc...), netEtc...)
	}
	for _, f := range etc {
		a = append(a, "--ro-bind-try", f, f)
	}
	for i, f := range made {
		a = append(a, "--ro-bind-data", strconv.Itoa(dataFD+i), f.path)
	}
	if len(e.filter) > 0 { // its descriptor comes after those of the files
		a = append(a, "--seccomp", strconv.Itoa(dataFD+len(made)))
	}
	a = append(a, "--proc", "/proc", "--dev", "/dev", "--dir", viewRoot)
	if len(r.Files) > 0 { // copied into the root's own tmpfs: they are on no disk
		a = append(a, "--dir", path.Dir(r.Files[0].Inside))
	}
	for i, f := range r.Files {
		a = append(a, "--ro-bind-data", strconv.Itoa(statusFD-len(r.Files)+i), f.Inside)
	}
	for _, m := range ms {
		flag := "--ro-bind"
		if m.writable {
			flag = "--bind"
		}
		if m.device {
			flag = "--dev-bind"
		}
		if m.optional {
			flag += "-try"
		}
		a = append(a, flag, stage(m), m.inside)
	}
	dir := r.Dir
	if dir == "" {
		dir = path.Join(viewRoot, executor.BuildDir)
	}
	if r.Network == job.NetworkSite {
		a = append(a, "--block-fd", strconv.Itoa(statusFD+1))
	}
	a = append(a, "--remount-ro", "/", "--chdir", dir, "--json-status-fd", strconv.Itoa(statusFD), "--")
	return append(a, r.Argv...)
}

// hostDir shows a folder, or repeats the link that it is on a merged /usr.
func hostDir(d string) []string {
	st, err := os.Lstat(d)
	if err != nil {
		return nil
	}
	if st.Mode()&os.ModeSymlink == 0 {
		return []string{"--ro-bind", d, d}
	}
	to, err := os.Readlink(d)
	if err != nil || strings.Contains(to, "..") {
		return nil
	}
	return []string{"--symlink", to, d}
}
