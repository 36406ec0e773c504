package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Config says what a lab is made with. Dir is required and the lab's own: disks are kept
// and mounted there, and whatever is mounted below it is unmounted by Close.
type Config struct {
	Dir  string
	Seed uint64 // of the cables' luck
}

// Lab is some machines and the cable between them. Its methods are safe for
// concurrent use, except that nothing may run beside Close.
type Lab struct {
	cfg    Config
	record record
	cable  *cable
	ctx    context.Context // ended by Close
	end    context.CancelFunc

	mu       sync.Mutex
	machines []*Machine
}

// labs counts those of this process: their names differ.
var labs atomic.Int64

// MaxMachines bounds a lab: the machines' addresses are one byte.
const MaxMachines = 200

// tools are the programs that a lab uses, with the Debian packages that have them.
var tools = []struct{ name, debian string }{
	{"ip", "iproute2"}, {"tc", "iproute2"}, {"nft", "nftables"}, {"mkfs.ext4", "e2fsprogs"}, {"mount", "mount"},
	{"losetup", "mount"}, {"blockdev", "util-linux"},
}

// Refused says why there can be no lab here; nil: there can.
func Refused() error {
	if os.Geteuid() != 0 {
		return errors.New("only root makes network namespaces, mounts and TAPs; this is uid " + strconv.Itoa(os.Geteuid()))
	}
	for _, t := range tools {
		if _, err := tool(t.name); err != nil {
			return fmt.Errorf("%s is not there; make setup installs %s", t.name, t.debian)
		}
	}
	dir, err := os.MkdirTemp("", "forgeyard-lab-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l, err := New(Config{Dir: dir})
	if err != nil {
		return err
	}
	defer l.Close()
	m, err := l.Machine("probe")
	if err != nil {
		return err
	}
	if err := m.Hears(m, false); err != nil {
		return err
	}
	if err := m.Thin(1000); err != nil {
		return err
	}
	return errors.Join(m.Mount(filepath.Join(dir, "disk"), 16<<20), l.Close())
}

// tool finds a program where root's are, too.
func tool(name string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p, nil
		}
	}
	return "", exec.ErrNotFound
}

// New makes a lab without machines. It first removes what processes that are gone
// have left.
func New(cfg Config) (*Lab, error) {
	if err := sweep(); err != nil {
		return nil, fmt.Errorf("what an earlier lab left: %w", err)
	}
	dir, err := filepath.EvalSymlinks(cfg.Dir)
	if err != nil {
		return nil, err
	}
	cfg.Dir = dir
	l := &Lab{cfg: cfg, cable: newCable(cfg.Seed)}
	l.record = record{Prefix: fmt.Sprintf("fyl%s-%d", strconv.FormatInt(int64(os.Getpid()), 36), labs.Add(1)), Dir: dir}
	l.ctx, l.end = context.WithCancel(context.Background())
	return l, l.record.write()
}

// Machine adds one. Its loopback and its interface are up.
func (l *Lab) Machine(name string) (*Machine, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	index := len(l.machines) + 1
	if index > MaxMachines {
		return nil, fmt.Errorf("a lab has at most %d machines", MaxMachines)
	}
	m := &Machine{Name: name, Addr: addrOf(index), lab: l, index: index, ns: fmt.Sprintf("%s-%d", l.record.Prefix, index)}
	if err := run("ip", "netns", "add", m.ns); err != nil {
		return nil, err
	}
	var tap *os.File
	err := m.inside(func() (err error) { tap, err = openTAP(cableEnd); return err })
	if err != nil {
		return nil, err
	}
	l.cable.plug(tap)
	l.machines = append(l.machines, m)
	mac := macOf(index)
	for _, words := range []string{
		"link set lo up",
		fmt.Sprintf("link set %s address %02x:%02x:%02x:%02x:%02x:%02x", cableEnd, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]),
		fmt.Sprintf("addr add %s/24 dev %s", m.Addr, cableEnd),
		fmt.Sprintf("link set %s up", cableEnd),
	} {
		if err := run("ip", append([]string{"-n", m.ns}, strings.Fields(words)...)...); err != nil {
			return nil, err
		}
	}
	return m, m.firewall()
}

// cableEnd is the interface's name on each machine.
const cableEnd = "lab0"

func addrOf(index int) netip.Addr { return netip.AddrFrom4([4]byte{10, 78, 0, byte(index)}) }

// Weather sets what the cable does to frames of one direction.
func (l *Lab) Weather(from, to *Machine, w Weather) {
	l.cable.set(pair{from.index - 1, to.index - 1}, w)
}

// Heal takes every cut, thin link and bad weather away.
func (l *Lab) Heal() error {
	l.mu.Lock()
	all := append([]*Machine(nil), l.machines...)
	l.mu.Unlock()
	var errs []error
	for _, m := range all {
		errs = append(errs, m.hearsAll(), m.Thin(0))
		for _, o := range all {
			l.Weather(m, o, Weather{})
		}
	}
	return errors.Join(errs...)
}

// Close ends every process of the lab and removes all that it made. It may be called
// again.
func (l *Lab) Close() error {
	l.end()
	l.cable.close()
	return l.record.remove()
}

// run runs a program to its end; what it said is part of the error.
func run(name string, args ...string) error { _, err := fed("", name, args...); return err }

// output is run for what a program says.
func output(name string, args ...string) (string, error) { return fed("", name, args...) }

// toolBound is how long a tool may take on a busy machine.
const toolBound = time.Minute

func fed(stdin, name string, args ...string) (string, error) {
	path, err := tool(name)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), toolBound)
	defer cancel()
	c := exec.CommandContext(ctx, path, args...)
	c.Stdin = strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}
