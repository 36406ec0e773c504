package content

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/forgeyard/forgeyard-node/internal/bench/party"
	"github.com/forgeyard/forgeyard-node/internal/bench/report"
)

// child is a party as its parent sees it.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	at  party.Says // its first line

	ended bool
}

// raise starts a party in a namespace ("": this one) and waits until it is ready.
func (b *Bench) raise(ctx context.Context, space string, c party.Config) (*child, error) {
	raw, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	words := []string{self}
	if space != "" {
		words = []string{"ip", "netns", "exec", space, self}
	}
	ch := &child{cmd: exec.CommandContext(ctx, words[0], words[1:]...)}
	ch.cmd.Env = append(os.Environ(), party.Env+"=1")
	ch.cmd.Stderr = os.Stderr
	if ch.in, err = ch.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := ch.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	ch.out = bufio.NewReaderSize(out, 1<<20)
	if err := ch.cmd.Start(); err != nil {
		return nil, err
	}
	if ch.at, err = ch.ask(string(raw)); err != nil {
		return nil, errors.Join(fmt.Errorf("a party of %s was not ready: %w", c.Kind, err), ch.end())
	}
	return ch, nil
}

func (c *child) hear() (party.Says, error) {
	var s party.Says
	line, err := c.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &s)
	}
	if err == nil && s.Error != "" {
		err = errors.New(s.Error)
	}
	return s, err
}

func (c *child) ask(word string) (party.Says, error) {
	if _, err := io.WriteString(c.in, word+"\n"); err != nil {
		return party.Says{}, err
	}
	return c.hear()
}

// end closes its input and waits. It is idempotent.
func (c *child) end() error {
	if c.ended {
		return nil
	}
	c.ended = true
	_ = c.in.Close()
	err := c.cmd.Wait()
	var gone *exec.ExitError
	if errors.As(err, &gone) {
		return nil // it was killed, or says on its error output why it ended
	}
	return err
}

// carried is one transfer between two processes.
type carried struct {
	seconds, cpu, receiver, sender float64 // peaks in bytes
	staged                         float64 // seconds until a tree was a folder too
}

// carry brings one thing from a fresh holder to a fresh receiver.
func (b *Bench) carry(ctx context.Context, kind string, size int64, files int) (c carried, err error) {
	dir, err := os.MkdirTemp("", "carry-")
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return b.carryIn(ctx, dir, kind, size, files)
}

// carryIn is carry in a folder that stays.
func (b *Bench) carryIn(ctx context.Context, dir, kind string, size int64, files int) (c carried, err error) {
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := errors.Join(os.Mkdir(from, 0o700), os.Mkdir(to, 0o700)); err != nil {
		return c, err
	}
	cfg := party.Config{Kind: kind, Dir: from, Listen: "127.0.0.1:0", Size: size, Files: files, Seed: 1}
	holder, err := b.raise(ctx, "", cfg)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, holder.end()) }()
	cfg.Dir, cfg.From, cfg.Ref, cfg.Names = to, []party.At{holder.at.At}, holder.at.Ref, holder.at.Names
	taker, err := b.raise(ctx, "", cfg)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, taker.end()) }()
	h0, err := holder.ask("usage")
	if err != nil {
		return c, err
	}
	t0, err := taker.ask("usage")
	if err != nil {
		return c, err
	}
	t1, err := taker.ask("bring")
	if err != nil {
		return c, fmt.Errorf("%s: %w", kind, err)
	}
	h1, err := holder.ask("usage")
	if err != nil {
		return c, err
	}
	c = carried{seconds: t1.Seconds, cpu: h1.CPU - h0.CPU + t1.CPU - t0.CPU, receiver: t1.Peak, sender: h1.Peak}
	if files > 0 {
		st, err := taker.ask("stage " + filepath.Join(dir, "folder"))
		if err != nil {
			return c, err
		}
		c.staged = t1.Seconds + st.Seconds
	}
	return c, nil
}

// oneBlob brings 1 GiB from one process to another: by ours, hashed and stored, by an
// HTTPS GET to a file, which hashes nothing, and by the stock bitswap, which stores
// nothing; in turns. The first round of each warms the machine's memory.
func (b *Bench) oneBlob(ctx context.Context) error {
	var speed, swap, cpu, receiver, sender []float64
	for i := range b.Rounds + 1 {
		https, err := b.carry(ctx, "https", 1<<30, 0)
		if err != nil {
			return err
		}
		own, err := b.carry(ctx, "ours", 1<<30, 0)
		if err != nil {
			return err
		}
		boxo, err := b.carry(ctx, "boxo", 1<<30, 0)
		if err != nil {
			return err
		}
		fmt.Fprintf(b.Out, "1 GiB, round %d: https %.2fs with %.2fs of CPU, ours %.2fs with %.2fs (%.0f and %.0f MiB), bitswap %.2fs with %.2fs; load %s\n",
			i, https.seconds, https.cpu, own.seconds, own.cpu, own.receiver/(1<<20), own.sender/(1<<20), boxo.seconds, boxo.cpu, report.Load())
		if i == 0 {
			continue
		}
		speed, swap, cpu = append(speed, https.seconds/own.seconds), append(swap, boxo.seconds/own.seconds), append(cpu, own.cpu/https.cpu)
		receiver, sender = append(receiver, own.receiver), append(sender, own.sender)
	}
	b.Add(report.Measured("content.blob_speed_vs_https", report.Ratio, 0.75, speed).AtLeast())
	b.Add(report.Measured("content.blob_speed_vs_bitswap", report.Ratio, 1.3, swap).AtLeast())
	b.Add(report.Measured("content.blob_cpu_vs_https", report.Ratio, 1.6, cpu))
	b.Add(report.Measured("content.blob_receiver_memory", report.MiB, 150<<20, receiver))
	b.Add(report.Measured("content.blob_sender_memory", report.MiB, 100<<20, sender))
	return nil
}

const (
	smallCount = 20_000
	smallSize  = 4 << 10
)

// smallFiles brings a tree of small files to who has none of them, beside rsync from
// a daemon on loopback. Neither syncs: rsync does not unless told. Both write to a fresh
// disk where one can be mounted, and nothing is removed before the end: ext4 passes over
// each inode that was freed in the last seconds, so who creates files where others were
// removed took ten times as long, and it is chance who does.
func (b *Bench) smallFiles(ctx context.Context) (err error) {
	own, err := os.MkdirTemp("", "small-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(own)) }()
	dir := own
	if d, derr := newLoopDisk(ctx, own, "xfs", 8<<30); derr == nil {
		defer func() { err = errors.Join(err, d.close()) }()
		dir = d.at
	} else {
		b.Say("small files go to this machine's own disk: %v", derr)
	}
	var rate, ratio, whole []float64
	var absent string
	for i := range b.Rounds {
		at := filepath.Join(dir, fmt.Sprint(i))
		if err := errors.Join(os.MkdirAll(filepath.Join(at, "ours"), 0o700), os.Mkdir(filepath.Join(at, "rsync"), 0o700)); err != nil {
			return err
		}
		own, err := b.carryIn(ctx, filepath.Join(at, "ours"), "ours", smallSize, smallCount)
		if err != nil {
			return err
		}
		rate = append(rate, smallCount/own.seconds)
		if absent != "" {
			continue
		}
		other, err := b.rsync(ctx, filepath.Join(at, "rsync"))
		if err != nil {
			absent = err.Error()
			continue
		}
		ratio, whole = append(ratio, other/own.seconds), append(whole, other/own.staged)
		fmt.Fprintf(b.Out, "%d files of 4 KiB, round %d: ours %.2fs with %.2fs of CPU, and as a folder %.2fs; rsync %.2fs; load %s\n", smallCount, i+1, own.seconds, own.cpu, own.staged, other, report.Load())
	}
	b.Add(report.Measured("content.small_files_per_second", report.Count, 5000, rate).AtLeast())
	for _, r := range []report.Result{
		report.Measured("content.small_files_speed_vs_rsync", report.Ratio, 1, ratio).AtLeast(),
		report.Measured("content.small_files_as_folder_vs_rsync", report.Ratio, 1, whole).AtLeast(),
	} {
		if absent != "" {
			r = r.Lacking(absent)
		}
		b.Add(r)
	}
	return nil
}

// rsync takes the time of one transfer of as many files, of the same bytes.
func (b *Bench) rsync(ctx context.Context, dir string) (seconds float64, err error) {
	if _, err := exec.LookPath("rsync"); err != nil {
		return 0, errors.New("rsync is not there; make setup installs it")
	}
	from := filepath.Join(dir, "from")
	if err := os.Mkdir(from, 0o700); err != nil {
		return 0, err
	}
	n, buf := &party.Noise{X: 1}, make([]byte, smallSize)
	for i := range smallCount {
		_, _ = n.Read(buf)
		if err := os.WriteFile(filepath.Join(from, fmt.Sprintf("f%05d", i)), buf, 0o600); err != nil {
			return 0, err
		}
	}
	port, err := freePort()
	if err != nil {
		return 0, err
	}
	conf := fmt.Sprintf("use chroot = no\nuid = %d\ngid = %d\npid file = %s\n[files]\npath = %s\n", os.Getuid(), os.Getgid(), filepath.Join(dir, "pid"), from)
	file := filepath.Join(dir, "conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		return 0, err
	}
	daemon := exec.CommandContext(ctx, "rsync", "--daemon", "--no-detach", "--address=127.0.0.1", fmt.Sprintf("--port=%d", port), "--config="+file)
	if err := daemon.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait() // killed
	}()
	if err := awaitPort(ctx, port); err != nil {
		return 0, err
	}
	t0 := time.Now()
	out, err := exec.CommandContext(ctx, "rsync", "-a", fmt.Sprintf("rsync://127.0.0.1:%d/files/", port), filepath.Join(dir, "to")).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("rsync: %w: %s", err, out)
	}
	return time.Since(t0).Seconds(), nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// awaitPort waits until somebody listens.
func awaitPort(ctx context.Context, port int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return c.Close()
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}
