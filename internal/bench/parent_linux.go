package main

import "syscall"

// dieWithParent lets no process of a measurement outlive it.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
