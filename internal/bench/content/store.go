package content

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/cas/disk/index"
	"github.com/forgeyard/forgeyard-node/internal/bench/report"
)

// EnvStore makes this program the process that opens a large store and asks it.
const EnvStore = "FORGEYARD_BENCH_STORE"

// asked is how many objects the large store is asked for, one of two of them not there.
const asked = 100_000

// opened is what a process saw that opened the large store.
type opened struct {
	Ready, Has, HasP99 float64 // seconds
	Peak               float64 // bytes
}

// largeIndex makes a store of many small objects and has other processes open it.
func (b *Bench) largeIndex(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "forgeyard-bench-store-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // what stays is in the machine's folder for such things
	began := time.Now()
	if err := fillStore(ctx, dir, b.Objects); err != nil {
		return err
	}
	fmt.Fprintf(b.Out, "an index of %d objects was made in %s; load %s\n", b.Objects, time.Since(began).Round(time.Second), report.Load())
	var ready, has, peak []float64
	for range b.Rounds {
		c := exec.CommandContext(ctx, os.Args[0])
		c.Env = append(os.Environ(), EnvStore+"="+dir, fmt.Sprint("FORGEYARD_BENCH_OBJECTS=", b.Objects))
		c.Stderr = os.Stderr
		text, err := c.Output()
		if err != nil {
			return err
		}
		var o opened
		if err := json.Unmarshal(text, &o); err != nil {
			return err
		}
		fmt.Fprintf(b.Out, "  ready in %s, has %s (p99 %s), peak %s; load %s\n", report.Millis(o.Ready), report.Micros(o.Has), report.Micros(o.HasP99), report.MiB(o.Peak), report.Load())
		ready, has, peak = append(ready, o.Ready), append(has, o.Has), append(peak, o.Peak)
	}
	b.Add(report.Measured("content.index_ready", report.Millis, 5, ready))
	b.Add(report.Measured("content.index_has", report.Micros, 50e-6, has))
	b.Add(report.Measured("content.index_memory", report.MiB, 300<<20, peak))
	return nil
}

// smallBytes is the content of a small object of the large store.
func smallBytes(i uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte("forgeyard bench object "), i)
}

// fillStore makes the rows that puts would make, from those of one object that was put.
func fillStore(ctx context.Context, dir string, n int) error {
	s, err := disk.Open(disk.Config{Dir: dir, NoSync: true})
	if err != nil {
		return err
	}
	_, err = s.Put(ctx, bytes.NewReader(smallBytes(0)), cas.PutOptions{})
	if err = errors.Join(err, s.Close()); err != nil {
		return err
	}
	db, err := index.Open(index.Options{Dir: filepath.Join(dir, "index"), NoSync: true})
	if err != nil {
		return err
	}
	var record []byte
	err = db.Scan([]byte("o"), nil, func(_, v []byte) bool { record = bytes.Clone(v); return false })
	for from := 0; err == nil && from < n; from += 20_000 {
		if err = ctx.Err(); err != nil {
			break
		}
		err = db.Update(false, func(batch *index.Batch) error {
			for i := from; i < min(n, from+20_000); i++ {
				v := smallBytes(uint64(i))
				d := cas.Sum(v)
				if err := errors.Join(batch.Put(append([]byte("o"), d[:]...), record), batch.Put(append([]byte("i"), d[:]...), v)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err = errors.Join(err, db.Flush(), db.Close()); err != nil {
		return err
	}
	// Else it would be brought to the disk while somebody is measured.
	if out, err := exec.CommandContext(ctx, "sync", "-f", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("sync: %s: %w", out, err)
	}
	return nil
}

// AskStore is the process that opens it.
func AskStore(ctx context.Context, dir string) error {
	var n uint64
	if _, err := fmt.Sscan(os.Getenv("FORGEYARD_BENCH_OBJECTS"), &n); err != nil {
		return err
	}
	began := time.Now()
	s, err := disk.Open(disk.Config{Dir: dir})
	if err != nil {
		return err
	}
	if !s.Has(ctx, cas.Sum(smallBytes(n/2))) {
		return errors.New("an object of the store is not there")
	}
	o := opened{Ready: time.Since(began).Seconds()}
	took := make([]float64, 0, asked)
	for i := range asked {
		d := cas.Sum(smallBytes(rand.Uint64N(n)))
		if i%2 == 1 {
			d[0] ^= 0x80
		}
		began := time.Now()
		if s.Has(ctx, d) != (i%2 == 0) {
			return fmt.Errorf("has %s is wrong", d)
		}
		took = append(took, time.Since(began).Seconds())
	}
	slices.Sort(took)
	o.Has, o.HasP99 = took[len(took)/2], took[len(took)*99/100]
	c, err := report.CostOf(os.Getpid())
	if err != nil {
		return err
	}
	o.Peak = c.Peak
	return errors.Join(json.NewEncoder(os.Stdout).Encode(o), s.Close())
}

// putBlob puts 1 GiB that the machine has in memory, and copies the same file with cp and
// a sync, in turns.
func (b *Bench) putBlob(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "forgeyard-bench-put-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // as above
	src := filepath.Join(dir, "source")
	if err := randomFile(src, 1<<30); err != nil {
		return err
	}
	var speed []float64
	for i := range b.Rounds {
		copied, err := timed(func() error { return copyAndSync(ctx, src, filepath.Join(dir, "copy")) })
		if err != nil {
			return err
		}
		put, err := timed(func() error { return putInto(ctx, filepath.Join(dir, fmt.Sprint("cas", i)), src) })
		if err != nil {
			return err
		}
		fmt.Fprintf(b.Out, "put 1 GiB, round %d: cp and sync %.2fs, put %.2fs; load %s\n", i, copied, put, report.Load())
		speed = append(speed, copied/put)
		if err := os.RemoveAll(filepath.Join(dir, fmt.Sprint("cas", i))); err != nil {
			return err
		}
	}
	b.Add(report.Measured("content.put_vs_cp", report.Ratio, 0.7, speed).AtLeast())
	return nil
}

func timed(f func() error) (float64, error) {
	began := time.Now()
	err := f()
	return time.Since(began).Seconds(), err
}

func randomFile(path string, n int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, rand.NewChaCha8([32]byte{1}), n)
	return errors.Join(err, f.Sync(), f.Close())
}

func copyAndSync(ctx context.Context, from, to string) error {
	if out, err := exec.CommandContext(ctx, "cp", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %s: %w", out, err)
	}
	out, err := exec.CommandContext(ctx, "sync", to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("sync: %s: %w", out, err)
	}
	return os.Remove(to)
}

func putInto(ctx context.Context, dir, src string) error {
	s, err := disk.Open(disk.Config{Dir: dir})
	if err != nil {
		return err
	}
	f, err := os.Open(src)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	_, err = s.Put(ctx, f, cas.PutOptions{Size: 1 << 30})
	return errors.Join(err, f.Close(), s.Close())
}
