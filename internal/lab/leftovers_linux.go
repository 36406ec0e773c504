package lab

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forgeyard/forgeyard-node/node/executor"
)

// record says what a lab may have made, and who made it. It is written before anything
// is made and removed after everything is.
type record struct {
	PID    int    `json:"pid"`
	Birth  uint64 `json:"birth"`  // of the process, in ticks since boot
	Prefix string `json:"prefix"` // of its namespaces and disk images
	Dir    string `json:"dir"`    // where its disks are mounted and kept
}

const recordDir = "/run/forgeyard-lab"

func (r *record) path() string { return filepath.Join(recordDir, r.Prefix+".json") }

func (r *record) write() error {
	self, err := executor.ReadProc(os.Getpid())
	if err != nil {
		return err
	}
	r.PID, r.Birth = self.PID, self.Birth
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(recordDir, 0o700), os.WriteFile(r.path(), b, 0o600))
}

// live tells whether the process that made it still runs; a pid that was given to
// another process since is not it.
func (r *record) live() bool {
	p, err := executor.ReadProc(r.PID)
	return err == nil && p.Alive() && p.Birth == r.Birth
}

// sweep removes what labs of processes that are gone have left.
func sweep() error {
	files, err := filepath.Glob(filepath.Join(recordDir, "*.json"))
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range files {
		b, err := os.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another one was quicker
		}
		var r record
		if err == nil {
			err = json.Unmarshal(b, &r)
		}
		if err != nil || r.path() != f {
			errs = append(errs, fmt.Errorf("%s is not a lab's record (%v); remove it", f, err))
			continue
		}
		if !r.live() {
			errs = append(errs, r.remove())
		}
	}
	return errors.Join(errs...)
}

// remove takes everything away that the record covers; what is gone already is no
// error.
func (r *record) remove() error {
	spaces, err := filepath.Glob("/run/netns/" + r.Prefix + "-*")
	errs := []error{err}
	for _, s := range spaces {
		errs = append(errs, endAllIn(s))
	}
	errs = append(errs, r.unmount())
	for _, s := range spaces {
		errs = append(errs, run("ip", "netns", "del", filepath.Base(s)))
	}
	images, err := filepath.Glob(filepath.Join(r.Dir, r.Prefix+"-*"+imageSuffix))
	errs = append(errs, err)
	for _, i := range images {
		errs = append(errs, detach(i), os.Remove(i))
	}
	if err := errors.Join(errs...); err != nil {
		return err // the record stays: the next lab tries again
	}
	if err := os.Remove(r.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// detach frees the devices that an image is behind.
func detach(image string) error {
	out, err := output("losetup", "--noheadings", "--output", "NAME", "--associated", image)
	for _, loop := range strings.Fields(out) {
		err = errors.Join(err, run("losetup", "--detach", loop))
	}
	return err
}

// endBound is how long what was killed may take to be gone.
const endBound = 30 * time.Second

// endAllIn kills what runs in a namespace, until nothing does.
func endAllIn(space string) error {
	var want, got unix.Stat_t
	if err := unix.Stat(space, &want); err != nil {
		return nil // gone
	}
	for end := time.Now().Add(endBound); ; time.Sleep(20 * time.Millisecond) {
		all, err := executor.Processes()
		if err != nil {
			return err
		}
		left := 0
		for _, p := range all {
			err := unix.Stat(fmt.Sprintf("/proc/%d/ns/net", p.PID), &got)
			if err != nil || got.Ino != want.Ino || got.Dev != want.Dev || p.PID == os.Getpid() || !p.Alive() {
				continue
			}
			left++
			_, _ = executor.SignalExactly(p.PID, p.Birth, unix.SIGKILL) // it ended meanwhile
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d processes in %s do not end", left, filepath.Base(space))
		}
	}
}

// unmount takes every disk down that is mounted below the lab's folder. Those of its
// processes in namespaces of their own end with their daemons.
func (r *record) unmount() error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	var errs []error
	for s := bufio.NewScanner(f); s.Scan(); {
		words := strings.Fields(s.Text())
		if len(words) > 4 && strings.HasPrefix(words[4], r.Dir+"/") {
			if err := unix.Unmount(words[4], unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
				errs = append(errs, fmt.Errorf("unmount %s: %w", words[4], err))
			}
		}
	}
	return errors.Join(errs...)
}
