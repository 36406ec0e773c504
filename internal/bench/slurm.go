package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// slurm is the peer of the runner: Debian's Slurm on this machine, with a controller, one
// node and their authentication, all below a folder of its own and on loopback.
type slurm struct {
	dir   string
	host  string // this machine's own name: the controller starts under no other
	procs []*exec.Cmd
}

// slurmSlots is how many tasks its node takes at once: as many as there are submitters, so
// that nobody waits for a place. Ours takes as many.
const slurmSlots = submitters

// slurmConf is a default configuration but for where things are. Processes are found by
// /proc and bound to nothing, which is the least that its node can do for a task.
const slurmConf = `ClusterName=bench
SlurmctldHost=%[5]s(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=%[1]s/munge.socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny
SlurmctldPort=%[2]d
SlurmdPort=%[3]d
StateSaveLocation=%[1]s/state
SlurmdSpoolDir=%[1]s/spool
SlurmctldPidFile=%[1]s/slurmctld.pid
SlurmdPidFile=%[1]s/slurmd.pid
SlurmctldLogFile=%[1]s/slurmctld.log
SlurmdLogFile=%[1]s/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=%[5]s NodeAddr=127.0.0.1 CPUs=%[4]d State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
`

// startSlurm installs what lacks, and returns when a first task has run.
func startSlurm(ctx context.Context, dir string) (s *slurm, err error) {
	s = &slurm{dir: dir}
	if out, err := exec.CommandContext(ctx, "scripts/bench-slurm.sh").CombinedOutput(); err != nil {
		return s, fmt.Errorf("scripts/bench-slurm.sh: %w: %.300s", err, out)
	}
	if os.Geteuid() != 0 {
		return s, errors.New("its daemons need root")
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w; %s", err, s.said())
			s.stop()
		}
	}()
	if s.host, err = os.Hostname(); err != nil {
		return s, err
	}
	s.host, _, _ = strings.Cut(s.host, ".")
	if err := s.configure(); err != nil {
		return s, err
	}
	if err := s.authenticate(ctx); err != nil {
		return s, err
	}
	if err := s.start("slurmctld", s.daemon("slurmctld", "-D", "-f", s.in("slurm.conf"))); err != nil {
		return s, err
	}
	if err := s.start("slurmd", s.daemon("slurmd", "-D", "-N", s.host, "-f", s.in("slurm.conf"))); err != nil {
		return s, err
	}
	return s, s.until(ctx, "a first task", func() error { return s.task(ctx) })
}

func (s *slurm) in(name string) string { return filepath.Join(s.dir, name) }

func (s *slurm) configure() error {
	if err := os.MkdirAll(s.in("state"), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(s.in("spool"), 0o755); err != nil {
		return err
	}
	var ports []int
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	conf := fmt.Sprintf(slurmConf, s.dir, ports[0], ports[1], slurmSlots, s.host)
	return os.WriteFile(s.in("slurm.conf"), []byte(conf), 0o644)
}

// authenticate starts munge with a key of its own.
func (s *slurm) authenticate(ctx context.Context) error {
	key := make([]byte, 1024)
	_, _ = rand.Read(key) // it never fails
	if err := os.WriteFile(s.in("munge.key"), key, 0o400); err != nil {
		return err
	}
	err := s.start("munged", s.daemon("munged", "--foreground", "--force", "--key-file="+s.in("munge.key"), "--socket="+s.in("munge.socket"),
		"--pid-file="+s.in("munged.pid"), "--seed-file="+s.in("munged.seed")))
	if err != nil {
		return err
	}
	return s.until(ctx, "munge's socket", func() error {
		_, err := os.Stat(s.in("munge.socket"))
		return err
	})
}

func (s *slurm) daemon(name string, args ...string) *exec.Cmd {
	c := exec.Command(name, args...)
	if p := "/usr/sbin/" + name; c.Err != nil {
		c = exec.Command(p, args...)
	}
	return c
}

func (s *slurm) env() []string { return append(os.Environ(), "SLURM_CONF="+s.in("slurm.conf")) }

func (s *slurm) start(name string, c *exec.Cmd) error {
	f, err := os.Create(s.in(name + ".out"))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // the process has its own
	c.Stdout, c.Stderr, c.Env, c.Dir, c.SysProcAttr = f, f, s.env(), s.dir, dieWithParent()
	if err := c.Start(); err != nil {
		return err
	}
	s.procs = append(s.procs, c)
	return nil
}

// task runs one that does nothing, as a person would.
func (s *slurm) task(ctx context.Context) error {
	c := exec.CommandContext(ctx, "srun", "--quiet", "-n1", "true")
	c.Env, c.Dir = s.env(), s.dir
	out, err := c.CombinedOutput()
	if err != nil {
		return fmt.Errorf("srun true: %w: %.200s", err, out)
	}
	return nil
}

func (s *slurm) until(ctx context.Context, what string, f func() error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if err = f(); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not seen within %s: %w", what, patience, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// said is the end of what its daemons wrote.
func (s *slurm) said() string {
	var all []string
	for _, name := range []string{"munged.out", "slurmctld.log", "slurmctld.out", "slurmd.log", "slurmd.out"} {
		if b, err := os.ReadFile(s.in(name)); err == nil && len(b) > 0 {
			all = append(all, fmt.Sprintf("%s: %s", name, b[max(0, len(b)-200):]))
		}
	}
	return strings.Join(all, "; ")
}

// stop ends its daemons, the last one first.
func (s *slurm) stop() {
	for i := len(s.procs) - 1; i >= 0; i-- {
		_ = s.procs[i].Process.Kill() // it may have ended
		_ = s.procs[i].Wait()
	}
	s.procs = nil
}
