package daemon

// LookAtSocket is how often a daemon looks at its socket.
const LookAtSocket = lookAtSocket
