// Package ownrun is what the daemon and its child agree on where a run is carried out by the
// node's own program: the result that the child leaves behind, and the hold under which it
// puts content.
//
// It starts nothing.
package ownrun

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// Result is what the child of an own run leaves behind.
type Result struct {
	Version  int                 `json:"version"` // 1
	Summary  string              `json:"summary,omitempty"`
	Outputs  []Output            `json:"outputs,omitempty"`
	Category job.FailureCategory `json:"category,omitempty"` // with a failure
	Error    string              `json:"error,omitempty"`    // names the input, or the step of maintenance
}

// Output is content that gets a name.
type Output struct {
	Name     string           `json:"name"`
	Tree     bool             `json:"tree,omitempty"`
	Digest   forgeyard.Digest `json:"digest"`
	Manifest forgeyard.Digest `json:"manifest,omitzero"`
	Size     int64            `json:"size"`
}

const (
	version  = 1
	file     = "result.json"
	maxBytes = 1 << 20
)

// Write is for the child; dir is its build folder.
func Write(dir string, r Result) error {
	r.Version = version
	b, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, file), b, 0o600)
	}
	if err != nil {
		return forgeyard.E("result", executor.KindOfDisk(err), err)
	}
	return nil
}

// Read is for who started the child, once its tree is dead. Errors: NotFound, Corrupt, Invalid.
func Read(dir string) (r Result, err error) {
	f, err := os.Open(filepath.Join(dir, file))
	if errors.Is(err, os.ErrNotExist) {
		return r, forgeyard.E("result", forgeyard.NotFound, err)
	}
	if err != nil {
		return r, forgeyard.E("result", executor.KindOfDisk(err), err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	text, err := io.ReadAll(io.LimitReader(f, maxBytes))
	if err != nil {
		return r, forgeyard.E("result", executor.KindOfDisk(err), err)
	}
	var got Result
	if err := json.Unmarshal(text, &got); err != nil { // all of it, or none: what follows a result makes it none
		return r, forgeyard.E("result", forgeyard.Corrupt, err)
	}
	if got.Version != version {
		return r, forgeyard.Errorf("result", forgeyard.Invalid, "version %d is not known, this program reads %d", got.Version, version)
	}
	return got, nil
}

// HoldName is the hold under which the child of an own run puts content, and HoldOwner who
// keeps it in the store: until the attempt's pin keeps the whole, or it has ended.
func HoldName(a forgeyard.AttemptID) string { return "attempt-" + string(a) }

// HoldOwner is the owner of that hold.
func HoldOwner(a forgeyard.AttemptID) string { return "hold/" + HoldName(a) }
