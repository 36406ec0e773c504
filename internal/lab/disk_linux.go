package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// disk is a machine's, once it has one.
type disk struct {
	image string
	at    string // where it is mounted
}

// Mount makes a disk of a size and mounts it.
func (m *Machine) Mount(at string, size int64) error {
	if m.disk.at != "" {
		return fmt.Errorf("%s has a disk already", m.Name)
	}
	if err := os.MkdirAll(at, 0o700); err != nil {
		return err
	}
	image := filepath.Join(m.lab.cfg.Dir, m.ns+imageSuffix)
	f, err := os.OpenFile(image, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return err
	}
	if err := run("mkfs.ext4", "-q", "-F", "-m", "0", image); err != nil {
		return err
	}
	m.disk = disk{image: image, at: at}
	return m.mount()
}

const imageSuffix = ".ext4"

func (m *Machine) mount() error {
	return run("mount", "-o", "loop,commit=30", m.disk.image, m.disk.at)
}

// ballast is the file that fills a disk.
func (m *Machine) ballast() string { return filepath.Join(m.disk.at, "ballast") }

// Fill leaves so many bytes of the disk free.
func (m *Machine) Fill(leave int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(m.disk.at, &st); err != nil {
		return os.NewSyscallError("statfs", err)
	}
	take := int64(st.Bavail)*st.Bsize - leave
	if take <= 0 {
		return nil
	}
	f, err := os.OpenFile(m.ballast(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, take)
	if errors.Is(err, unix.ENOSPC) {
		err = nil // others wrote meanwhile: it is as full as it gets
	}
	return errors.Join(os.NewSyscallError("fallocate", err), f.Close())
}

// FillInodes uses up the disk's table of files; there is still room for bytes.
func (m *Machine) FillInodes() error {
	if err := os.MkdirAll(m.ballast()+".d", 0o700); err != nil {
		return err
	}
	for i := 0; ; i++ {
		f, err := os.OpenFile(filepath.Join(m.ballast()+".d", fmt.Sprint(i)), os.O_CREATE|os.O_WRONLY, 0o600)
		if errors.Is(err, unix.ENOSPC) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
}

// Empty takes away what Fill and FillInodes put there.
func (m *Machine) Empty() error {
	err := os.Remove(m.ballast())
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(m.ballast()+".d"))
}

// PowerCut takes what was not synced from the disk, and brings the disk back as the
// machine finds it at its next start. Its processes must have been killed: it waits for
// those that still end.
func (m *Machine) PowerCut() error {
	d, err := os.Open(m.disk.at)
	if err != nil {
		return err
	}
	err = unix.IoctlSetPointerInt(int(d.Fd()), fsShutdown, shutdownNoFlush)
	if err := errors.Join(os.NewSyscallError("shut the file system down", err), d.Close()); err != nil {
		return err
	}
	for end := time.Now().Add(unmountBound); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Unmount(m.disk.at, 0)
		if err == nil {
			return m.mount()
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return fmt.Errorf("unmount %s: %w", m.disk.at, err)
		}
	}
}

const (
	fsShutdown      = 0x8004587d // FS_IOC_SHUTDOWN
	shutdownNoFlush = 2          // the journal is not written either
	unmountBound    = 30 * time.Second
)
