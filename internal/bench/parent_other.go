//go:build !linux

package main

import "syscall"

// dieWithParent is nothing where the kernel offers nothing.
func dieWithParent() *syscall.SysProcAttr { return nil }
