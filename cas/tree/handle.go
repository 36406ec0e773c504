package tree

import (
	"errors"
	"io"
	"io/fs"
)

// info is what a look at a name tells.
type info struct {
	mode fs.FileMode
	size int64
	uid  int      // whose it is; -1 where the system has no such numbers
	id   identity // tells one file from another, in the way of the system
	// stamp changes when somebody writes to the file, renames or links it, or gives it
	// other rights. Zero where the system has nothing that cannot be set back.
	stamp [11]int64
}

// same reports whether two looks met one file.
func (i info) same(j info) bool { return i.mode.Type() == j.mode.Type() && i.id.same(j.id) }

var (
	errSwapped = errors.New("another file stands there now")
	errNoMore  = io.EOF
)
