//go:build !unix

package runner

import "syscall"

// signals: this platform has no executor, and of the names only these.
var signals = map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP}

func signalName(s syscall.Signal) string { return s.String() }
