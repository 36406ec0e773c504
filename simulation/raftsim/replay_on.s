//go:build simoverlay

// It lets the compiler accept a function without a body (replay_on.go).
