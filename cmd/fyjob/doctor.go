package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
)

// doctor checks what the other verbs rely on, one line each.
func (h *helper) doctor(args []string) error {
	if err := none(args, "fyjob doctor"); err != nil {
		return err
	}
	failed := 0
	check := func(what string, err error) {
		mark, detail := "ok  ", ""
		if err != nil {
			failed++
			mark, detail = "FAIL", ": "+err.Error()
		}
		fmt.Fprintf(h.out, "%s %s%s\n", mark, what, detail)
	}
	check(fmt.Sprintf("protocol %d, mode %s, attempt %s, epoch %d", checkpoint.ProtocolVersion, h.mode, h.attempt, h.epoch), h.identity())
	check("can write in "+h.ckpt, writable(h.ckpt))
	check("can write in "+h.ctl, writable(h.ctl))
	check("can write in the outbox", writable(filepath.Join(h.ctl, checkpoint.OutboxName)))
	_, err := os.ReadDir(filepath.Join(h.ctl, checkpoint.InboxName))
	check("can read the inbox", err)
	r, err := h.request()
	check(fmt.Sprintf("request %s (seq %d)", r.Kind, r.Seq), err)
	if h.restoreDir == "" {
		check("fresh start: nothing to restore", nil)
	} else {
		_, err := os.ReadDir(h.restoreDir)
		check("can read the restored state in "+h.restoreDir, err)
	}
	last, err := h.lastSlot()
	check(fmt.Sprintf("last slot %d", last), err)
	if failed > 0 {
		return exitf(exitNo, "%d of the checks failed", failed)
	}
	return nil
}

func (h *helper) identity() error {
	if h.epoch == 0 {
		return exitf(exitNo, "%s is not set", checkpoint.EnvEpoch)
	}
	return forgeyard.CheckULID("attempt", string(h.attempt))
}

// writable makes a file, renames it and removes it, which is all that is ever done.
func writable(dir string) error {
	p := filepath.Join(dir, ".fyjob-doctor")
	if err := replaceFile(p, nil); err != nil {
		return err
	}
	return os.Remove(p)
}
