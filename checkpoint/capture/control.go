package capture

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"syscall"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
)

// Prepare makes the control directory's folders and a first, empty request. The caller
// gives the workload's user ctl and outbox to write in.
func Prepare(ctl string) error {
	for _, d := range []string{checkpoint.OutboxName, checkpoint.InboxName} {
		if err := os.MkdirAll(path.Join(ctl, d), 0o755); err != nil {
			return forgeyard.E("control", forgeyard.Other, err)
		}
	}
	return WriteRequest(ctl, checkpoint.Request{Kind: checkpoint.StopNone})
}

// WriteRequest replaces request.json in one step.
func WriteRequest(ctl string, r checkpoint.Request) error {
	return within(ctl, func(root *os.Root) error { return replace(root, checkpoint.RequestName, r.Encode()) })
}

// WriteAnswer answers message n, and lets go of the message and of very old answers.
func WriteAnswer(ctl string, n int, a checkpoint.Answer) error {
	_, err := Tell(ctl, n, a)
	return err
}

// Tell is WriteAnswer that says whether the message was still there. One that was taken back
// has nobody who hears the answer.
func Tell(ctl string, n int, a checkpoint.Answer) (heard bool, err error) {
	err = within(ctl, func(root *os.Root) error {
		if err := replace(root, path.Join(checkpoint.InboxName, checkpoint.MessageName(n)), a.Encode()); err != nil {
			return err
		}
		err := root.Remove(path.Join(checkpoint.OutboxName, checkpoint.MessageName(n)))
		heard, err = err == nil, absent(err)
		if old := n - keepAnswers; old > 0 {
			err = errors.Join(err, absent(root.Remove(path.Join(checkpoint.InboxName, checkpoint.MessageName(old)))))
		}
		return err
	})
	return heard, err
}

// Delivery is one message of the outbox, or what is wrong with it.
type Delivery struct {
	N       int
	Message checkpoint.Message
	Err     error
}

// ReadOutbox reads the waiting messages in order of their numbers, a bounded number at
// a time. They stay until WriteAnswer or DropMessage.
func ReadOutbox(ctl string) ([]Delivery, error) {
	var out []Delivery
	err := within(ctl, func(root *os.Root) error {
		names, err := readNames(root, checkpoint.OutboxName)
		if err != nil {
			return err
		}
		var ns []int
		for _, name := range names {
			if n, ok := checkpoint.ParseMessageName(name); ok {
				ns = append(ns, n)
			}
		}
		slices.Sort(ns)
		for _, n := range ns[:min(len(ns), maxOutbox)] {
			d := Delivery{N: n}
			b, err := readBounded(root, path.Join(checkpoint.OutboxName, checkpoint.MessageName(n)), checkpoint.MaxControlBytes)
			if err != nil {
				if _, gone := root.Lstat(path.Join(checkpoint.OutboxName, checkpoint.MessageName(n))); errors.Is(gone, fs.ErrNotExist) {
					continue // it was answered, or taken back, since the names were read
				}
			}
			if err == nil {
				d.Message, err = checkpoint.ParseMessage(b)
			}
			if err == nil && d.Message.N != n {
				err = forgeyard.Errorf("outbox", forgeyard.Invalid, "message %d lies in the file of %d", d.Message.N, n)
			}
			d.Err = err
			out = append(out, d)
		}
		return nil
	})
	return out, err
}

// DropMessage removes a message that needs no answer.
func DropMessage(ctl string, n int) error {
	return within(ctl, func(root *os.Root) error {
		return absent(root.RemoveAll(path.Join(checkpoint.OutboxName, checkpoint.MessageName(n))))
	})
}

// Sealed lists the sealed slots in the checkpoint directory, ascending. What is still
// being written is not listed, however high its number (K05).
func Sealed(dir string) ([]int, error) {
	var out []int
	err := within(dir, func(root *os.Root) error {
		names, err := readNames(root, ".")
		for _, name := range names {
			if seq, sealed, ok := checkpoint.ParseSlot(name); ok && sealed {
				out = append(out, seq)
			}
		}
		return err
	})
	slices.Sort(out)
	return out, err
}

// RemoveSlot frees a slot's disk once it was answered. Staged leftovers of the same
// number go too.
func RemoveSlot(dir string, seq int) error {
	return within(dir, func(root *os.Root) error {
		return errors.Join(removeAll(root, checkpoint.SlotName(seq)), removeAll(root, checkpoint.StagedName(seq)))
	})
}

// removeAll takes a directory away from under a program that may still write into it: what
// came between the look and the removal is removed by the next try.
func removeAll(root *os.Root, name string) (err error) {
	for range removeTries {
		if err = absent(root.RemoveAll(name)); !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
	}
	return err
}

// removeTries is how often a program may have written in between.
const removeTries = 100

// ReadHeartbeat reads the last beat; ok is false when there was none.
func ReadHeartbeat(ctl string) (h checkpoint.Heartbeat, ok bool, err error) {
	ok, err = readOptional(ctl, checkpoint.ProgressName, func(b []byte) (err error) { h, err = checkpoint.ParseHeartbeat(b); return err })
	return h, ok, err
}

// ReadCritical reads the critical section that the program is in; ok is false when it
// is in none. Its length counts from the caller's first sight of it: the file's own times
// and Until are the program's word.
func ReadCritical(ctl string) (c checkpoint.CriticalSection, ok bool, err error) {
	ok, err = readOptional(ctl, checkpoint.CriticalName, func(b []byte) (err error) { c, err = checkpoint.ParseCritical(b); return err })
	return c, ok, err
}

func readOptional(ctl, name string, parse func([]byte) error) (ok bool, err error) {
	err = within(ctl, func(root *os.Root) error {
		b, err := readBounded(root, name, checkpoint.MaxControlBytes)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		ok = err == nil
		if ok {
			err = parse(b)
		}
		return err
	})
	return ok && err == nil, err
}

// within opens a directory that the workload may write in; nothing below leaves it.
func within(dir string, f func(*os.Root) error) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return forgeyard.E("control", forgeyard.Other, err)
	}
	defer root.Close()
	if err := f(root); err != nil {
		return forgeyard.E("control", forgeyard.Other, err)
	}
	return nil
}

// replace writes a file in one step. The program is alive or gone: no crash of the
// machine lets it read this again, so nothing is synced.
func replace(root *os.Root, name string, b []byte) error {
	tmp := path.Join(path.Dir(name), "."+path.Base(name)+".tmp")
	if err := absent(root.Remove(tmp)); err != nil {
		return err
	}
	f, err := root.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return root.Rename(tmp, name)
}

// readNames reads a bounded number of names.
func readNames(root *os.Root, dir string) ([]string, error) {
	f, err := root.OpenFile(dir, os.O_RDONLY|noFollow|nonBlock, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var names []string
	for len(names) < maxNames {
		part, err := f.Readdirnames(dirChunk)
		names = append(names, part...)
		if len(part) == 0 || err != nil {
			break // The end, or a directory that the program took away: the next look tells.
		}
	}
	return names, nil
}

func absent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
