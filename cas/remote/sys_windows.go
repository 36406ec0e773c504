package remote

import (
	"errors"
	"os"
	"path/filepath"
)

// noFollow has no like here; links need a right that others do not have.
const noFollow = 0

// ours: a folder's rights are those of the files in it here.
func ours(*os.File) bool { return true }

// place closes f and gives it its name at path: a file that is open cannot be renamed here.
func place(f *os.File, path string) error {
	err := f.Close()
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// lend gives f to who reads it by its name, under a name of its own: what is locked cannot be
// read by others here, so the lock does not keep them away.
func lend(f *os.File) (name string, release func(), err error) {
	own, err := os.CreateTemp(filepath.Dir(f.Name()), partPrefix+"*")
	if err != nil {
		return "", nil, errors.Join(err, drop(f))
	}
	name = own.Name()
	if err := errors.Join(own.Close(), place(f, name)); err != nil {
		return "", nil, errors.Join(err, os.Remove(name))
	}
	return name, func() { _ = os.Remove(name) }, nil
}

// drop closes f and removes it: in this order, since a file that is open keeps its name here.
func drop(f *os.File) error { return errors.Join(f.Close(), os.Remove(f.Name())) }
