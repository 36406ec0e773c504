package executor

import "time"

// Use is what a tree takes.
type Use struct {
	CPU    time.Duration // processor time since it began
	Memory int64         // bytes that are resident; what processes share counts in each
}
