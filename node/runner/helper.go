package runner

import (
	"fmt"
	"os"
	"path"
	"path/filepath"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// helperName is what a workload calls the job helper.
const helperName = "fyjob"

// giveHelper puts the job helper among the workload's programs. Where the executor has a file
// namespace the host's own file is shown there, read-only: it is several megabytes, and a copy
// for each workspace takes longer than all else that a small job needs. A workload that sees
// the host's files gets a copy, since it may run as the user who could write to the original;
// so does one that could not run the original.
func (a *Attempt) giveHelper(helper string) error {
	to := filepath.Join(a.root, executor.BinDir, helperName)
	st, err := os.Stat(helper)
	if err != nil {
		return forgeyard.E("workspace", forgeyard.Other, fmt.Errorf("job helper: %w", err))
	}
	if a.view != a.root && filepath.IsAbs(helper) && st.Mode().Perm()&0o005 == 0o005 {
		if err := os.WriteFile(to, nil, 0o755); err != nil { // its place
			return forgeyard.E("workspace", executor.KindOfDisk(err), err)
		}
		a.binds = append(a.binds, executor.Bind{Host: helper, Inside: path.Join(a.view, executor.BinDir, helperName)})
		return nil
	}
	b, err := os.ReadFile(helper)
	if err != nil {
		return forgeyard.E("workspace", forgeyard.Other, fmt.Errorf("job helper: %w", err))
	}
	err = os.WriteFile(to, b, 0o755)
	if err == nil {
		err = os.Chmod(to, 0o755)
	}
	if err != nil {
		return forgeyard.E("workspace", executor.KindOfDisk(err), err)
	}
	return nil
}
