//go:build !linux

package runner

import "math"

// diskFree is not read here: no executor runs on this platform.
func diskFree(string) (int64, error) { return math.MaxInt64 / 2, nil }

func inodesFree(string) int64 { return 1 }

func inodesSpare(string) int64 { return math.MaxInt64 }

func mountsBelow(string) ([]string, error) { return nil, nil }
