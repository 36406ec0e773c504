package runner

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/capability"
	"github.com/forgeyard/forgeyard-node/node/executor"
)

// environment is all that a step's program sees: nothing of the node's (07§63–64).
// Later sources win, and the runner's own names come last.
func (a *Attempt) environment(s job.Step) []string {
	build := path.Join(a.view, executor.BuildDir)
	m := map[string]string{
		"PATH": path.Join(a.view, executor.BinDir) + ":" + capability.DefaultPath,
		"HOME": build, "TMPDIR": path.Join(a.view, executor.TmpDir), "LANG": "C.UTF-8", "USER": "job", "LOGNAME": "job", "SHELL": "/bin/sh",
	}
	maps.Copy(m, a.task.Spec.Env)
	maps.Copy(m, s.Env)
	m["FORGEYARD_SOURCE_DIR"] = path.Join(a.view, executor.SourceDir)
	m["FORGEYARD_BUILD_DIR"] = build
	m["FORGEYARD_ATTEMPT_ID"] = string(a.task.Authority.Attempt)
	m["FORGEYARD_EPOCH"] = strconv.FormatUint(a.task.Authority.Fence.Epoch, 10)
	m["FORGEYARD_RESUME_ID"] = a.task.ResumeID
	m["FORGEYARD_INTERRUPTIONS"] = strconv.Itoa(a.task.Interruptions)
	m["FORGEYARD_FENCE"] = fmt.Sprintf("%s.%s.%d", a.run.cfg.Site, a.task.Authority.Attempt, a.task.Authority.Fence.Epoch)
	m["FORGEYARD_STOP_GRACE_SECONDS"] = strconv.FormatInt(seconds(a.task.Spec.Stop.Grace), 10)
	m["FORGEYARD_CKPT_MODE"] = string(a.task.Spec.Resume.Mode)
	if a.task.Spec.Model != "" {
		m["FORGEYARD_MODEL"] = a.task.Spec.Model
	}
	if a.task.Spec.Guidance != "" {
		m["FORGEYARD_GUIDANCE_FILE"] = path.Join(a.view, executor.BinDir, guidanceFile)
	}
	for _, d := range a.devices {
		m["FORGEYARD_DEVICE_"+envWord(d.as)] = d.bind.Inside
	}
	for _, in := range a.ins {
		if name, ok := in.Toolchain(); ok {
			m["FORGEYARD_TOOLCHAIN_"+envWord(name)] = path.Join(a.view, in.Path)
		}
	}
	if a.task.FenceToken != 0 {
		m["FORGEYARD_FENCE_TOKEN"] = strconv.FormatUint(a.task.FenceToken, 10)
	}
	if a.speaks() {
		a.protocol(m)
	}
	var l []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		l = append(l, k+"="+m[k])
	}
	return l
}

// protocol adds the variables of FYCP/1 §2.
func (a *Attempt) protocol(m map[string]string) {
	c := a.contract
	m["FORGEYARD_CKPT_PROTOCOL"] = strconv.Itoa(checkpoint.ProtocolVersion)
	m["FORGEYARD_CKPT_DIR"] = path.Join(a.view, executor.CkptDir)
	m["FORGEYARD_CTL_DIR"] = path.Join(a.view, executor.CtlDir)
	m["FORGEYARD_CKPT_INTERVAL_SECONDS"] = strconv.FormatInt(seconds(cmp.Or(a.task.Advised, c.Interval)), 10)
	m["FORGEYARD_CKPT_WINDOW_SECONDS"] = strconv.FormatInt(seconds(c.Window), 10)
	m["FORGEYARD_CKPT_MAX_BYTES"] = strconv.FormatInt(c.MaxBytes, 10)
	if c.Format.Name != "" {
		m[checkpoint.EnvFormat] = c.Format.String()
	}
	m["FORGEYARD_CKPT_EXIT_CODE"] = strconv.Itoa(c.ExitCode)
	m["FORGEYARD_CKPT_REJECT_CODE"] = strconv.Itoa(c.RejectCode)
	if a.task.Mark != "" {
		m[checkpoint.EnvMark] = a.task.Mark
	}
	if epoch := a.task.Authority.Fence.Epoch; c.Profile == job.ProfileSlurm && epoch > 1 {
		m[checkpoint.EnvSlurmRestarts] = strconv.FormatUint(epoch-1, 10) // Slurm too sets it from the first restart on
	}
	restored := ""
	if a.restored != nil && !c.PutsBack() { // RESTORE_DIR is unset when fresh
		restored = path.Join(a.view, executor.RestoreDir, payloadDir)
		m["FORGEYARD_RESTORE_DIR"] = restored
		m["FORGEYARD_RESTORE_ID"] = a.task.Restore.ID.String()
		m["FORGEYARD_RESTORE_SEQ"] = strconv.Itoa(a.restored.Seq)
		m["FORGEYARD_RESTORE_FORMAT"] = a.restored.Format.String()
	}
	if c.Mode == checkpoint.ModeFramework {
		maps.Copy(m, c.TestEnv(m["FORGEYARD_CKPT_DIR"], restored, a.list))
	}
}

// envWord makes a part of a variable's name of the name of a device or a toolchain.
func envWord(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, s)
}
