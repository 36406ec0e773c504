//go:build !linux

package serial

import (
	"os"
	"runtime"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/devices"
)

// port has the methods of an open console; there is none here.
type port struct{ *os.File }

func (port) flush() error { return unsupported("console") }

// Abort is Close.
func (p port) Abort() error { return p.Close() }

func (d *Driver) open() (*port, error) { return nil, unsupported("console") }

func (d *Driver) identify() (devices.Identity, error) {
	return devices.Identity{Path: d.cfg.Path}, unsupported("console")
}

func openPty() (master, slave *os.File, path string, err error) {
	return nil, nil, "", unsupported("pty")
}

func hungUp(err error) error { return err }

func unsupported(what string) error {
	return forgeyard.Errorf(what, forgeyard.Unavailable, "serial consoles are not supported on %s; they are on linux", runtime.GOOS)
}
