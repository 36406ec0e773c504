//go:build ignore

// Checkpoints of a Go program that goes on: fyjob seals a directory.
//
//	job:
//	  steps: [{name: count, sh: 'go build -o count $FORGEYARD_SOURCE_DIR/sealed.go && ./count 1000 250'}]
//	  outputs: [{path: result}]
//	  resume: {mode: application, format: {name: count, version: 1}, checkpoint: {interval: 10m}}
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

func main() {
	var total, every, i, sum int
	if _, err := fmt.Sscan(strings.Join(os.Args[1:], " "), &total, &every); err != nil {
		log.Fatal(err)
	}
	if dir := os.Getenv("FORGEYARD_RESTORE_DIR"); dir != "" {
		b, err := os.ReadFile(filepath.Join(dir, "sum"))
		if err != nil {
			log.Fatal(err)
		}
		if _, err := fmt.Sscan(string(b), &i, &sum); err != nil {
			log.Fatal(err)
		}
		fyjob("restore", "ok")
	}
	under := os.Getenv("FORGEYARD_CKPT_PROTOCOL") != ""
	for i < total {
		i++
		sum = (sum*31 + i) % 1000003 // the work
		if !under || i%every != 0 {
			continue
		}
		save(i, sum, total)
		if code, _ := fyjob("ckpt", "should-exit"); code == 0 {
			code, _ := strconv.Atoi(os.Getenv("FORGEYARD_CKPT_EXIT_CODE"))
			os.Exit(code)
		}
	}
	if err := os.WriteFile("result", []byte(fmt.Sprintln(sum)), 0o644); err != nil {
		log.Fatal(err)
	}
}

// save makes one checkpoint; without one the work goes on.
func save(i, sum, total int) {
	code, dir := fyjob("ckpt", "begin")
	if code != 0 {
		return
	}
	if err := os.WriteFile(filepath.Join(dir, "sum"), []byte(fmt.Sprintln(i, sum)), 0o644); err != nil {
		log.Fatal(err)
	}
	if code, _ := fyjob("ckpt", "commit", dir, "--progress", fmt.Sprintf("%d/%d", i, total)); code == 5 {
		log.Fatal("another epoch does this work")
	}
}

// fyjob runs the helper: its exit code, and what it printed.
func fyjob(args ...string) (int, string) {
	cmd := exec.Command("fyjob", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if x := (*exec.ExitError)(nil); errors.As(err, &x) {
		return x.ExitCode(), ""
	}
	if err != nil {
		return -1, ""
	}
	return 0, strings.TrimSpace(string(out))
}
