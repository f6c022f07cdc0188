from windtunnel.cli import main

main()
