//go:build !linux

package quota

import "github.com/forgeyard/forgeyard-node"

// Sum is bytes and files of one folder.
type Sum struct{ Bytes, Files int64 }

// Counter counts one workspace.
type Counter struct{ Deep bool }

// Count needs what only the Linux port reads; no workload runs elsewhere.
func Count(string) (map[string]Sum, *Counter, error) {
	return nil, nil, forgeyard.Errorf("count disk", forgeyard.Unavailable, "files are not counted on this platform")
}

// Deleted counts nothing.
func (*Counter) Deleted([]int) Sum { return Sum{} }

// FreeOf needs what only the Linux port reads.
func FreeOf(string) (Free, error) {
	return Free{}, forgeyard.Errorf("count disk", forgeyard.Unavailable, "free space is not read on this platform")
}
