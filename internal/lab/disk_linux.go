package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// disk is a machine's, once it has one.
type disk struct {
	image string
	loop  string // the device that it is behind, for as long as it has power
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

// mount puts the image behind a device that was never used before. Mounting with a
// loop option would take the old one, and with it the old file system, for as long as
// any mount namespace on this machine has a copy of it.
func (m *Machine) mount() error {
	out, err := output("losetup", "--find", "--show", m.disk.image)
	if err != nil {
		return err
	}
	m.disk.loop = strings.TrimSpace(out)
	return run("mount", "-t", "ext4", "-o", "commit=30", m.disk.loop, m.disk.at)
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
		err := unix.Mknod(filepath.Join(m.ballast()+".d", fmt.Sprint(i)), unix.S_IFREG|0o600, 0) // one call a file, and none to close it
		if errors.Is(err, unix.ENOSPC) {
			return nil
		}
		if err != nil {
			return os.NewSyscallError("mknod", err)
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
// machine finds it at its next start. Its daemon must have been killed; what of it still
// ends sees errors of a disk that is gone.
func (m *Machine) PowerCut() error {
	d, err := os.Open(m.disk.at)
	if err != nil {
		return err
	}
	err = unix.IoctlSetPointerInt(int(d.Fd()), fsShutdown, shutdownNoFlush)
	if err := errors.Join(os.NewSyscallError("shut the file system down", err), d.Close()); err != nil {
		return err
	}
	if err := unix.Unmount(m.disk.at, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", m.disk.at, err)
	}
	// What the journal has committed and the device still holds back belongs to the disk;
	// written later, it would fall on what comes after.
	err = errors.Join(run("blockdev", "--flushbufs", m.disk.loop), run("losetup", "--detach", m.disk.loop))
	return errors.Join(err, m.mount())
}

const (
	fsShutdown      = 0x8004587d // FS_IOC_SHUTDOWN
	shutdownNoFlush = 2          // the journal is not written either
)
