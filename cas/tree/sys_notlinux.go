//go:build !linux

package tree

import (
	"errors"
	"io/fs"
	"os"
)

func clone(_, _ *os.File) error { return errors.ErrUnsupported }

func copyRange(_, _ *os.File, _, _ int64) (int64, error) { return 0, errors.ErrUnsupported }

func sparse(fs.FileInfo) bool { return false }

func nextData(_ *os.File, at, size int64) (from, to int64) { return at, size }
