//go:build !linux

package main

import "io"

// rawTerminal leaves the terminal as it is: lines are sent when they are ended.
func rawTerminal(io.Reader) (restore func(), err error) { return func() {}, nil }
